//! Arithmetic that must give the same bits everywhere.

/// Lanes of a sum: enough independent chains to hide the latency of an addition.
const LANES: usize = 16;

/// Adding and taking away 1.5 · 2²³ rounds an f32 below 2²² to the nearest integer, halves to even, in two
/// additions on any CPU; in between, the low bits hold that integer.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// `Σ f(x[i])` in f64, by [`LANES`] partial sums and a tree.
#[inline(always)]
pub(crate) fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for lane in 0..LANES {
            lanes[lane] += f(f64::from(x[lane]));
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f(f64::from(x));
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// `e^x`, at most 1 ulp off (2 where the result is subnormal); 0 below -104, infinite above 88.73.
///
/// `x = n ln 2 + r` with an integer n and `|r| <= ln 2 / 2`; `e^r = 1 + r + r² q(r)`, where q is the minimax
/// polynomial of degree 4 (Remez; relative error of e^r below 2^-28); then two scalings by powers of two, so
/// that neither overflows before the result does.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // ln 2 in two parts; n times the first, of 14 bits, is exact.
    const LN2_HIGH: f32 = 0.693_176_27;
    const LN2_LOW: f32 = -2.908_897_1e-5;
    const Q: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_745, 0.001_381_453_7];
    // Beyond these the result is 0 and infinity already. Comparisons keep NaN.
    let x = if x < -105.0 { -105.0 } else { x };
    let x = if x > 90.0 { 90.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let whole = rounded - ROUND;
    let r = (x - whole * LN2_HIGH) - whole * LN2_LOW;
    let q = (((Q[4] * r + Q[3]) * r + Q[2]) * r + Q[1]) * r + Q[0];
    let power = 1.0 + (r + r * r * q);
    let half = n >> 1;
    let two_to = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    power * two_to(half) * two_to(n.wrapping_sub(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the exact value.
    fn ulps(got: f32, exact: f64) -> f64 {
        let exponent = exact.abs().log2().floor().max(-126.0);
        (f64::from(got) - exact).abs() / (exponent - 23.0).exp2()
    }

    #[test]
    fn exp_is_within_its_bound_over_the_whole_range() {
        let (mut worst, mut worst_subnormal) = (0.0f64, 0.0f64);
        // Every 97th float of either sign.
        for bits in (0..=f32::INFINITY.to_bits()).step_by(97) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let (got, exact) = (exp(x), f64::from(x).exp());
                if exact > f64::from(f32::MAX) * (1.0 + 1e-7) {
                    assert_eq!(got, f32::INFINITY, "{x}");
                } else if exact >= f64::from(f32::MIN_POSITIVE) {
                    worst = worst.max(ulps(got, exact));
                } else {
                    worst_subnormal = worst_subnormal.max(ulps(got, exact));
                }
            }
        }
        assert!(worst <= 1.0, "{worst} ulp");
        assert!(worst_subnormal <= 2.0, "{worst_subnormal} ulp of a subnormal");
    }

    #[test]
    fn exp_of_special_values() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::MIN), 0.0);
        assert_eq!(exp(-104.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!(exp(88.73), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert!(exp(-103.0) > 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_count_every_value_once() {
        for len in [0usize, 1, 15, 16, 17, 100, 2560] {
            let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(sum(&x, |x| 2.0 * x), (len * len.saturating_sub(1)) as f64);
        }
    }
}
