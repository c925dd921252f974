//! Arithmetic that gives the same bits on every platform.
//!
//! IEEE 754 fixes the result of `+ - * /` and of conversions, but not of `exp`: each platform's math library rounds
//! it in its own way, and one differing last bit can turn a draw. So the exponential is built here from the former.

/// ln 2 in two parts: the upper one has 21 trailing zero bits, so its product with an exponent (11 bits) is exact.
const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;

/// Below this the result would be subnormal, which some processors flush to zero: here it is zero on all of them.
const LOWEST: f64 = -708.0;
/// Above this the result overflows.
const HIGHEST: f64 = 709.782_712_893_384;

/// Taylor coefficients of e^r: 1/0! to 1/13!.
const COEFFICIENTS: [f64; 14] = {
    let mut coefficients = [1.0; 14];
    let mut n = 1;
    let mut factorial = 1.0;
    while n < 14 {
        factorial *= n as f64;
        coefficients[n] = 1.0 / factorial;
        n += 1;
    }
    coefficients
};

/// e^x within 2 units in the last place, the same bits everywhere; 0 below -708, infinity on overflow, NaN for NaN.
///
/// `x = k ln 2 + r` with `|r| <= ln 2 / 2` (W. Cody, W. Waite, "Software Manual for the Elementary Functions", 1980),
/// then the Taylor series of e^r to r^13, whose remainder is below 2^-57 of the result.
pub(super) fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x < LOWEST {
        return 0.0;
    }
    if x > HIGHEST {
        return f64::INFINITY;
    }
    let scaled = x * std::f64::consts::LOG2_E;
    // The cast truncates, so this rounds to nearest without a call into the math library.
    let k = (scaled + if scaled < 0.0 { -0.5 } else { 0.5 }) as i32;
    let r = (x - f64::from(k) * LN2_HI) - f64::from(k) * LN2_LO;
    // Even and odd powers apart, each by Horner's scheme: a processor works on both at once.
    let square = r * r;
    let [mut even, mut odd] = [COEFFICIENTS[12], COEFFICIENTS[13]];
    for n in (0..12).step_by(2).rev() {
        even = even * square + COEFFICIENTS[n];
        odd = odd * square + COEFFICIENTS[n + 1];
    }
    let series = even + odd * r;
    // In two steps, as 2^1024 is no f64 though its product with a series below 1 is.
    let half = k / 2;
    series * power_of_two(half) * power_of_two(k - half)
}

/// 2^k for |k| <= 1022.
fn power_of_two(k: i32) -> f64 {
    f64::from_bits(((1023 + k) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units in the last place of two positive numbers.
    fn ulps(a: f64, b: f64) -> u64 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn exp_is_within_its_bound_over_the_whole_range() {
        // The standard library's own error, below 1, is on top of ours.
        let steps = 400_000;
        for i in 0..=steps {
            let x = LOWEST + (HIGHEST - LOWEST) * f64::from(i) / f64::from(steps);
            assert!(ulps(exp(x), x.exp()) <= 3, "{x}: {} for {}", exp(x), x.exp());
        }
        // Where a softmax lives, and around the points where k changes.
        for i in 0..=400_000 {
            let x = -40.0 * f64::from(i) / 400_000.0;
            assert!(ulps(exp(x), x.exp()) <= 3, "{x}");
        }
        for k in -1021..=1023 {
            let edge = (f64::from(k) + 0.5) * std::f64::consts::LN_2;
            for x in [edge.next_down(), edge, edge.next_up()] {
                assert!(x < LOWEST || ulps(exp(x), x.exp()) <= 3, "{x}");
            }
        }
        for power in -1074..0 {
            let x = 2f64.powi(power);
            assert!(ulps(exp(x), x.exp()) <= 3 && ulps(exp(-x), (-x).exp()) <= 3, "2^{power}");
        }
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(LOWEST.next_down()), 0.0);
        assert!(exp(LOWEST) >= f64::MIN_POSITIVE);
        assert!(exp(HIGHEST).is_finite());
        assert_eq!(exp(HIGHEST.next_up()), f64::INFINITY);
        assert_eq!(exp(f64::INFINITY), f64::INFINITY);
        assert!(exp(f64::NAN).is_nan());
    }

    #[test]
    fn exp_bits_are_pinned() {
        let bits = [-700.25, -87.3, -20.0, -1.0, -0.1, 0.5, 1.0, 300.0].map(|x| exp(x).to_bits());
        assert_eq!(bits, PINNED);
    }
    const PINNED: [u64; 8] = [
        57128419154484366,
        4039896492968364747,
        4477057993643618918,
        4600298746774613816,
        4606325270462671674,
        4610103999673009820,
        4613303445314885482,
        6556121482539723594,
    ];
}
