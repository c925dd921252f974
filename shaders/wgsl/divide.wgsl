// a / b rounded to nearest, for normal positive a, b and quotient. A GPU's own division may be off by
// 2.5 units in the last place, which would tip an activation to the next code. Its result is corrected
// here: the remainder a - q b is small, so that 32 bits hold it exactly although q b has 48.
fn divide(a: f32, b: f32) -> f32 {
    var q = a / b;
    let divisor = i32(mantissa(b));
    for (var i = 0; i < 3; i++) {
        let shift = exponent(a) - exponent(q) - exponent(b) + 23;
        let remainder = bitcast<i32>((mantissa(a) << u32(shift)) - mantissa(q) * mantissa(b));
        // Below a power of two floats lie twice as close.
        let below = select(2, 4, mantissa(q) == 0x800000u);
        if (2 * remainder > divisor) {
            q = bitcast<f32>(bitcast<u32>(q) + 1u);
        } else if (below * remainder < -divisor) {
            q = bitcast<f32>(bitcast<u32>(q) - 1u);
        }
    }
    return q;
}

fn mantissa(x: f32) -> u32 {
    return (bitcast<u32>(x) & 0x7fffffu) | 0x800000u;
}

fn exponent(x: f32) -> i32 {
    return i32(bitcast<u32>(x) >> 23u) - 127;
}
