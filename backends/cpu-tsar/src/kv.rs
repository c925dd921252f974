//! The KV cache: `[layer, sequence, kv head, position, dim]`, so that attention reads a head's vectors one
//! after another. Vectors are padded with zeros to whole lanes.

use std::ops::Range;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use pulp::NullaryFnOnce;
use trine_backend::{Error, Heads, KvFormat, KvShape, Result, Row, activation};

use crate::isa::Isa;
use crate::memory::Aligned;
use crate::ops::math::ROUND;
use crate::simd::LANES;

/// Keys and values of every layer and sequence.
#[derive(Debug)]
pub struct Kv {
    shape: KvShape,
    keys: Cells,
    values: Cells,
}

/// The vectors of all keys, or of all values.
#[derive(Debug)]
enum Cells {
    F32(Aligned<f32>),
    /// The bits of f16.
    F16(Aligned<u16>),
    /// Codes, and one scale for each vector.
    Int8(Aligned<i8>, Aligned<f32>),
}

/// Some consecutive vectors of a head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Vectors<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Int8(&'a [i8], &'a [f32]),
}

impl Kv {
    /// An empty cache. Errors if it has no extent or takes too much memory.
    pub(crate) fn new(shape: KvShape, format: KvFormat) -> Result<Self> {
        let KvShape { layers, sequences, context, kv_heads, head_dim } = shape;
        let factors = [layers, sequences, context, kv_heads, head_dim];
        if factors.contains(&0) {
            return Err(Error::Invalid(format!("a KV cache of {shape:?} holds nothing")));
        }
        // Whatever overflows is refused as too large below.
        let vectors = factors[..4].iter().try_fold(1usize, |product, &factor| product.checked_mul(factor));
        let vectors = vectors.unwrap_or(usize::MAX);
        let what = format!("a KV cache of {context} positions");
        let cells = |_| Cells::new(format, vectors, head_dim.checked_next_multiple_of(LANES), &what);
        Ok(Kv { shape, keys: cells(())?, values: cells(())? })
    }

    /// What it was made for.
    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Length of a padded vector.
    pub(crate) fn stride(&self) -> usize {
        self.shape.head_dim.next_multiple_of(LANES)
    }

    /// Index of the vector of a layer, sequence, head and position, in vectors.
    fn index(&self, layer: usize, sequence: u32, head: usize, position: usize) -> usize {
        let KvShape { layers, sequences, context, kv_heads, .. } = self.shape;
        let sequence = sequence as usize;
        assert!(layer < layers && sequence < sequences && head < kv_heads, "no such layer, sequence or head");
        assert!(position < context, "position {position} of a cache of {context}");
        ((layer * sequences + sequence) * kv_heads + head) * context + position
    }

    /// Panics unless the cache is one of these heads.
    pub(crate) fn expect(&self, heads: Heads) {
        assert_eq!((heads.kv, heads.dim), (self.shape.kv_heads, self.shape.head_dim), "another model's KV cache");
    }

    /// Stores the key and value heads of each fused row at its sequence and position.
    ///
    /// On the calling thread: it is some 2 % of what one row's matrix products take on one.
    pub(crate) fn store(&mut self, isa: Isa, layer: usize, rows: &[Row], qkv: &[f32], heads: Heads) {
        self.expect(heads);
        assert_eq!(qkv.len(), rows.len() * heads.fused_width());
        for (row, qkv) in rows.iter().zip(qkv.chunks_exact(heads.fused_width())) {
            let (keys, values) = qkv[heads.query_width()..].split_at(heads.kv_width());
            for head in 0..heads.kv {
                let index = self.index(layer, row.sequence, head, row.position as usize);
                let (stride, from) = (self.stride(), head * heads.dim..(head + 1) * heads.dim);
                self.keys.store(isa, index, stride, &keys[from.clone()]);
                self.values.store(isa, index, stride, &values[from]);
            }
        }
    }

    /// Keys and values of `positions`, `[positions, stride]` each.
    pub(crate) fn vectors(
        &self,
        layer: usize,
        sequence: u32,
        head: usize,
        positions: Range<usize>,
    ) -> [Vectors<'_>; 2] {
        let first = self.index(layer, sequence, head, positions.start);
        let last = self.index(layer, sequence, head, positions.end - 1);
        let range = first..last + 1;
        [self.keys.vectors(range.clone(), self.stride()), self.values.vectors(range, self.stride())]
    }
}

impl Cells {
    fn new(format: KvFormat, vectors: usize, stride: Option<usize>, what: &str) -> Result<Self> {
        let cells = stride.and_then(|stride| vectors.checked_mul(stride)).unwrap_or(usize::MAX);
        Ok(match format {
            KvFormat::F32 => Cells::F32(Aligned::zeroed(cells, what)?),
            KvFormat::F16 => Cells::F16(Aligned::zeroed(cells, what)?),
            KvFormat::Int8 => Cells::Int8(Aligned::zeroed(cells, what)?, Aligned::zeroed(vectors, what)?),
        })
    }

    fn store(&mut self, isa: Isa, index: usize, stride: usize, vector: &[f32]) {
        let to = index * stride..index * stride + vector.len();
        match self {
            Cells::F32(cells) => cells[to].copy_from_slice(vector),
            Cells::F16(cells) => cells[to].reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(vector),
            Cells::Int8(codes, scales) => {
                scales[index] = isa.vectorize(Quantize { x: vector, codes: &mut codes[to] });
            }
        }
    }

    fn vectors(&self, range: Range<usize>, stride: usize) -> Vectors<'_> {
        let cells = range.start * stride..range.end * stride;
        match self {
            Cells::F32(values) => Vectors::F32(&values[cells]),
            Cells::F16(values) => Vectors::F16(&values[cells]),
            Cells::Int8(codes, scales) => Vectors::Int8(&codes[cells], &scales[range]),
        }
    }
}

/// Int8 codes of a vector; gives the scale.
struct Quantize<'a> {
    x: &'a [f32],
    codes: &'a mut [i8],
}

impl NullaryFnOnce for Quantize<'_> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        let (scale, inverse) = activation::span_scale(self.x);
        for (code, &x) in self.codes.iter_mut().zip(self.x) {
            // |x · inverse| is at most 127 and a rounding error: no clamp. (NaN: the scale is NaN too.)
            *code = (x * inverse + ROUND).to_bits() as i8;
        }
        scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { layers: 2, sequences: 2, context: 5, kv_heads: 3, head_dim: 10 };

    #[test]
    fn vectors_are_where_they_were_stored() {
        let heads = Heads { query: 3, kv: 3, dim: 10 };
        let row = Row { token: 0, sequence: 1, position: 4, output: true };
        let qkv: Vec<f32> = (0..heads.fused_width()).map(|i| i as f32 - 20.0).collect();
        let mut kv = Kv::new(SHAPE, KvFormat::F16).unwrap();
        kv.store(Isa::detect(), 1, &[row], &qkv, heads);
        for head in 0..3 {
            let [Vectors::F16(keys), Vectors::F16(values)] = kv.vectors(1, 1, head, 3..5) else { panic!() };
            assert_eq!((keys.len(), &keys[..16]), (32, &[0; 16][..]));
            for i in 0..10 {
                let expected = |part: usize| half::f16::from_f32(qkv[30 * part + head * 10 + i]).to_bits();
                assert_eq!((keys[16 + i], values[16 + i]), (expected(1), expected(2)));
            }
        }
        let [Vectors::F16(other), _] = kv.vectors(1, 0, 0, 0..5) else { panic!() };
        assert!(other.iter().all(|&bits| bits == 0));
    }

    #[test]
    fn codes_are_those_of_the_contract() {
        let mut vectors: Vec<Vec<f32>> = vec![vec![0.0; 9], vec![1e-44; 3], vec![127.0, 0.5, 1.5, -2.5, -127.0]];
        vectors.push((0..128).map(|i| ((i * 37 % 101) as f32 - 50.3) * 1e7).collect());
        vectors.push((0..128).map(|i| ((i * 37 % 101) as f32 - 50.3) * 1e-7).collect());
        for x in vectors {
            let (scale, inverse) = activation::span_scale(&x);
            let expected: Vec<i8> = x.iter().map(|&x| activation::code(x, inverse)).collect();
            for isa in [Isa::Plain, Isa::detect()] {
                let mut codes = vec![0; x.len()];
                assert_eq!(isa.vectorize(Quantize { x: &x, codes: &mut codes }), scale);
                assert_eq!(codes, expected);
            }
        }
    }

    #[test]
    fn impossible_caches_are_errors() {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Int8] {
            for shape in [
                KvShape { context: usize::MAX, ..SHAPE },
                KvShape { context: 1 << 55, ..SHAPE },
                KvShape { head_dim: usize::MAX, ..SHAPE },
            ] {
                assert!(matches!(Kv::new(shape, format), Err(Error::OutOfMemory(_))), "{shape:?}");
            }
            assert!(matches!(Kv::new(KvShape { kv_heads: 0, ..SHAPE }, format), Err(Error::Invalid(_))));
        }
    }
}
