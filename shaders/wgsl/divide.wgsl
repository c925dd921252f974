// a / b rounded to nearest, for normal positive a, b and quotient. A GPU's own division may be off by
// 2.5 units in the last place, which would tip an activation to the next code. Its result is corrected
// here: the remainder a - q b is small, so that 32 bits hold it exactly although q b has 48.
fn divide(a: f32, b: f32) -> f32 {
    // Near first: the number of units is good to the last one. Then the last one.
    let near = a / b;
    let units = round(f32(remainder(a, b, near)) / f32(mantissa(b)));
    let q = bitcast<f32>(bitcast<i32>(near) + i32(units));
    let rest = remainder(a, b, q);
    let divisor = i32(mantissa(b));
    // Below a power of two floats lie twice as close.
    let below = select(2, 4, mantissa(q) == 0x800000u);
    let last = select(0, 1, 2 * rest > divisor) - select(0, 1, below * rest < -divisor);
    return bitcast<f32>(bitcast<i32>(q) + last);
}

// a - q b in units of the last place of q, times the mantissa of b.
fn remainder(a: f32, b: f32, q: f32) -> i32 {
    let shift = exponent(a) - exponent(q) - exponent(b) + 23;
    return bitcast<i32>((mantissa(a) << u32(shift)) - mantissa(q) * mantissa(b));
}

fn mantissa(x: f32) -> u32 {
    return (bitcast<u32>(x) & 0x7fffffu) | 0x800000u;
}

fn exponent(x: f32) -> i32 {
    return i32(bitcast<u32>(x) >> 23u) - 127;
}
