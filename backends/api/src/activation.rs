//! INT8 quantisation of activations: half of the integer contract.
//!
//! Every backend computes `inverse = 127 / max|x|` in f32, `q = round_half_even(x · inverse)` clamped to
//! ±127, and `scale = max|x| / 127`, over the whole token or over 32 columns. (Multiplying by the inverse
//! is what BitNet models were trained with; dividing by the scale would differ in the last code at ties.)
//! A span of zeros has the scale 0 and codes 0. A NaN or infinite activation leaves its span's scale NaN
//! so that the fault shows in the logits rather than passing as a wrong answer.

/// Columns that share a scale under [`Activation::Block`], and that integer sums are formed over.
pub const BLOCK: usize = 32;

/// How the activations of a matrix product are represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// f32 as they are: dense weights.
    Float,
    /// INT8 with one scale per token.
    Token,
    /// INT8 with a scale per [`BLOCK`] columns.
    Block,
}

/// The scale of a span and the codes' multiplier: `(max|x| / 127, 127 / max|x|)`.
pub fn span_scale(x: &[f32]) -> (f32, f32) {
    let mut largest = 0.0f32;
    let mut finite = true;
    for &value in x {
        largest = largest.max(value.abs());
        finite &= value.is_finite();
    }
    match (finite, largest) {
        (false, _) => (f32::NAN, 0.0),
        (true, 0.0) => (0.0, 0.0),
        // 127 / x overflows for subnormal x: such a span counts as zero.
        (true, largest) if largest < f32::MIN_POSITIVE * 128.0 => (0.0, 0.0),
        (true, largest) => (largest / 127.0, 127.0 / largest),
    }
}

/// One code.
pub fn code(x: f32, inverse: f32) -> i8 {
    (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8
}

/// Quantises one token: `codes` as long as `x`, and a scale for each [`BLOCK`] columns of it (all equal
/// under [`Activation::Token`]). The last block may be shorter.
///
/// # Panics
/// If the lengths do not fit, or for [`Activation::Float`].
pub fn quantize(x: &[f32], activation: Activation, codes: &mut [i8], scales: &mut [f32]) {
    assert_eq!(x.len(), codes.len());
    assert_eq!(scales.len(), x.len().div_ceil(BLOCK));
    match activation {
        Activation::Float => panic!("float activations are not quantised"),
        Activation::Token => {
            let (scale, inverse) = span_scale(x);
            scales.fill(scale);
            quantize_span(x, inverse, codes);
        }
        Activation::Block => {
            for ((x, codes), out) in x.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(scales) {
                let (scale, inverse) = span_scale(x);
                *out = scale;
                quantize_span(x, inverse, codes);
            }
        }
    }
}

fn quantize_span(x: &[f32], inverse: f32, codes: &mut [i8]) {
    for (out, &value) in codes.iter_mut().zip(x) {
        *out = code(value, inverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(x: &[f32], activation: Activation) -> (Vec<i8>, Vec<f32>) {
        let mut codes = vec![0; x.len()];
        let mut scales = vec![0.0; x.len().div_ceil(BLOCK)];
        quantize(x, activation, &mut codes, &mut scales);
        (codes, scales)
    }

    #[test]
    fn halves_round_to_even() {
        let (codes, scales) = run(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0], Activation::Token);
        assert_eq!(codes, [127, 0, 2, 2, 0, -2, -127]);
        assert_eq!(scales, [1.0]);
    }

    #[test]
    fn an_outlier_costs_only_its_own_block() {
        let mut x = vec![1.0f32; 64];
        x[0] = 1000.0;
        let (codes, scales) = run(&x, Activation::Block);
        assert_eq!((codes[1], codes[32]), (0, 127));
        assert_eq!(scales, [1000.0 / 127.0, 1.0 / 127.0]);
        let (codes, scales) = run(&x, Activation::Token);
        assert_eq!((codes[1], codes[32]), (0, 0));
        assert_eq!(scales[0], scales[1]);
    }

    #[test]
    fn zeros_subnormals_and_nan() {
        assert_eq!(run(&[0.0; 33], Activation::Block), (vec![0; 33], vec![0.0; 2]));
        assert_eq!(run(&[1e-44, -1e-44], Activation::Token), (vec![0; 2], vec![0.0]));
        let (codes, scales) = run(&[1.0, f32::NAN], Activation::Token);
        assert_eq!(codes, [0, 0]);
        assert!(scales[0].is_nan());
        assert!(run(&[f32::INFINITY], Activation::Token).1[0].is_nan());
        // The largest finite value keeps its code.
        assert_eq!(run(&[f32::MAX, -f32::MAX], Activation::Token).0, [127, -127]);
    }
}
