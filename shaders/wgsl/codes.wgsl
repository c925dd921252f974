// INT8 codes of a span of activations, and of keys and values.
//#include divide

// |x| as an integer: it orders as |x| does, and what is not finite comes last.
fn magnitude(x: f32) -> u32 {
    return bitcast<u32>(x) & 0x7fffffffu;
}

// A span's scale, max|x| / 127, and its codes' multiplier, 127 / max|x|.
struct Span {
    scale: f32,
    inverse: f32,
}

fn span_of(largest: u32) -> Span {
    return Span(span_half(largest, false), span_half(largest, true));
}

// The scale or the multiplier: where both are needed at once, different threads can divide.
fn span_half(largest: u32, is_inverse: bool) -> f32 {
    if (largest >= 0x7f800000u) {
        // A NaN: a fault must show in the logits.
        return select(bitcast<f32>(largest | 0x7fc00000u), 0.0, is_inverse);
    }
    // 127 / x overflows below 2^-119: such a span counts as zero.
    if (largest < 0x04000000u) {
        return 0.0;
    }
    let x = bitcast<f32>(largest);
    return divide(select(x, 127.0, is_inverse), select(127.0, x, is_inverse));
}

fn code(x: f32, inverse: f32) -> i32 {
    return i32(clamp(round(x * inverse), -127.0, 127.0));
}

fn code4(x: vec4<f32>, inverse: f32) -> u32 {
    return pack4xI8(vec4(code(x.x, inverse), code(x.y, inverse), code(x.z, inverse), code(x.w, inverse)));
}

// The sum of four codes.
fn sum4(word: u32) -> i32 {
    return dot4I8Packed(word, 0x01010101u);
}
