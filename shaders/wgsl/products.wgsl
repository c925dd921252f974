// What a block's integer sum is worth. Values is one f32, or four of them: tokens or rows.

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// The block's product but for the activations' scale. sums: of the activations' codes.
// Everything before the scale is a whole number below 2^24.
fn weigh(dots: Values, sums: Values, scale: Values, zero: Values) -> Values {
    if (ZERO == MINIMUM) {
        return fma(zero, sums, dots * scale);
    }
    if (ZERO == POINT) {
        return (dots - zero * sums) * scale;
    }
    if (ZERO == EIGHT) {
        return (dots - 8.0 * sums) * scale;
    }
    if (!SCALED) {
        return dots - sums;
    }
    return dots * scale;
}

// sum + product · the activations' scale, with one rounding, everywhere: so that a row is the same bits in
// whatever batch.
fn add_product(sum: Values, product: Values, scale: Values) -> Values {
    return fma(product, select(Values(1.0), scale, SCALED), sum);
}

// A ternary matrix's scales.
fn finish(sum: Values, row_scale: Values, token_scale: Values) -> Values {
    if (SCALED) {
        return sum;
    }
    return sum * row_scale * token_scale;
}
