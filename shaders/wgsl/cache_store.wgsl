// What the KV cache holds of a vector.
//#include codes

// Rounds to nearest even; pack2x16float may round as it likes.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    // 65520 and more round to infinity.
    if (size >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    // Below 2^-14 halves are multiples of 2^-24.
    if (size < 0x38800000u) {
        return sign | u32(round(bitcast<f32>(size) * 16777216.0));
    }
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
}

fn halves(x: f32, y: f32) -> u32 {
    return half_bits(x) | (half_bits(y) << 16u);
}

// 16 bytes of the cache from the quads that they hold: one, two or four of them. inverse: of an INT8 vector.
fn piece_of(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, inverse: f32) -> vec4<u32> {
    if (CACHE == 0u) {
        return bitcast<vec4<u32>>(a);
    }
    if (CACHE == 1u) {
        return vec4(halves(a.x, a.y), halves(a.z, a.w), halves(b.x, b.y), halves(b.z, b.w));
    }
    return vec4(code4(a, inverse), code4(b, inverse), code4(c, inverse), code4(d, inverse));
}
