//! The KV cache: chunk by chunk of positions, in which a head's vectors lie one after another, as attention reads them.
//!
//! Values are `[sequence, chunk, layer, kv head, position, dim]`, each padded with zeros to whole lanes: attention adds them up, a
//! lane for each column. Keys are `[sequence, chunk, layer, kv head, block of positions, dim, position]`: a lane for each position
//! gives the scores of a block as they are, where sums over a key's lanes would have to be added up for every score.
//!
//! What a text of some length has touched lies together, whatever the context that there is room for. So pages of 2 MB take
//! little more than it needs, and attention, which goes from page to page, waits less for their addresses.

use std::ops::Range;

use bytemuck::Zeroable;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use pulp::NullaryFnOnce;
use trine_backend::{Error, Heads, KvFormat, KvShape, Result, Row, activation};

use crate::isa::Isa;
use crate::memory::Aligned;
use crate::ops::math::ROUND;
use crate::simd::LANES;

/// Positions of a chunk, the last of a sequence's may be shorter: a few µs of work for attention, so that a fork is worth it and
/// a context splits well.
pub(crate) const CHUNK: usize = 256;

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

impl<'a> Vectors<'a> {
    /// Without scales.
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Vectors::F32(values) => bytemuck::cast_slice(values),
            Vectors::F16(bits) => bytemuck::cast_slice(bits),
            Vectors::Int8(codes, _) => bytemuck::cast_slice(codes),
        }
    }
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
        let product =
            |factors: &[usize]| factors.iter().try_fold(1usize, |product, &factor| product.checked_mul(factor));
        let padded = context.checked_next_multiple_of(LANES);
        let vectors = padded.and_then(|context| product(&[layers, sequences, kv_heads, context]));
        let cells =
            |dim: Option<usize>| Cells::new(format, vectors, dim, &format!("a KV cache of {context} positions"));
        Ok(Kv { shape, keys: cells(Some(head_dim))?, values: cells(head_dim.checked_next_multiple_of(LANES))? })
    }

    /// What it was made for.
    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Length of a padded value.
    pub(crate) fn stride(&self) -> usize {
        self.shape.head_dim.next_multiple_of(LANES)
    }

    /// Index of the vector of a layer, sequence, head and position, in vectors.
    fn index(&self, layer: usize, sequence: u32, head: usize, position: usize) -> usize {
        let KvShape { layers, sequences, context, kv_heads, .. } = self.shape;
        let sequence = sequence as usize;
        assert!(layer < layers && sequence < sequences && head < kv_heads, "no such layer, sequence or head");
        assert!(position < context, "position {position} of a cache of {context}");
        let (context, start) = (context.next_multiple_of(LANES), position / CHUNK * CHUNK);
        let chunk = CHUNK.min(context - start);
        (sequence * context + start) * layers * kv_heads + (layer * kv_heads + head) * chunk + position - start
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
                let from = head * heads.dim..(head + 1) * heads.dim;
                let (block, lane) = (index / LANES, index % LANES);
                self.keys.store(isa, index, block * LANES * heads.dim, Some(lane), &keys[from.clone()]);
                self.values.store(isa, index, index * self.stride(), None, &values[from]);
            }
        }
    }

    /// Keys `[blocks, dim, LANES]` and values `[positions, stride]` of `positions`, which start with a block. The last block of
    /// keys may have more positions, with whatever they hold.
    ///
    /// # Panics
    /// If they are not of one chunk.
    pub(crate) fn vectors(
        &self,
        layer: usize,
        sequence: u32,
        head: usize,
        positions: Range<usize>,
    ) -> [Vectors<'_>; 2] {
        assert!(positions.start.is_multiple_of(LANES), "keys are read from the start of a block");
        assert_eq!(positions.start / CHUNK, (positions.end - 1) / CHUNK, "positions of one chunk");
        let first = self.index(layer, sequence, head, positions.start);
        let last = self.index(layer, sequence, head, positions.end - 1) + 1;
        let keys = self.keys.vectors(first..last.next_multiple_of(LANES), self.shape.head_dim);
        [keys, self.values.vectors(first..last, self.stride())]
    }
}

impl Cells {
    fn new(format: KvFormat, vectors: Option<usize>, width: Option<usize>, what: &str) -> Result<Self> {
        let vectors = vectors.unwrap_or(usize::MAX);
        let cells = width.and_then(|width| vectors.checked_mul(width)).unwrap_or(usize::MAX);
        Ok(match format {
            KvFormat::F32 => Cells::F32(large(cells, what)?),
            KvFormat::F16 => Cells::F16(large(cells, what)?),
            KvFormat::Int8 => Cells::Int8(large(cells, what)?, large(vectors, what)?),
        })
    }

    /// Stores vector `index` at cell `to`, or in this lane of the block there.
    fn store(&mut self, isa: Isa, index: usize, to: usize, lane: Option<usize>, vector: &[f32]) {
        match self {
            Cells::F32(cells) => put(&mut cells[to..], lane, vector),
            Cells::F16(cells) => {
                let mut bits = [0; PIECE];
                for (at, piece) in vector.chunks(PIECE).enumerate() {
                    let bits = &mut bits[..piece.len()];
                    bits.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(piece);
                    put(&mut cells[to + piece_start(at, lane)..], lane, bits);
                }
            }
            Cells::Int8(codes, scales) => {
                scales[index] = isa.vectorize(Quantize { x: vector, codes: &mut codes[to..], lane });
            }
        }
    }

    /// The cells of vectors `range`, each of this width.
    fn vectors(&self, range: Range<usize>, width: usize) -> Vectors<'_> {
        let cells = range.start * width..range.end * width;
        match self {
            Cells::F32(values) => Vectors::F32(&values[cells]),
            Cells::F16(values) => Vectors::F16(&values[cells]),
            Cells::Int8(codes, scales) => Vectors::Int8(&codes[cells], &scales[range]),
        }
    }
}

/// Zeros, of which those that are touched may come in pages of 2 MB.
fn large<T: Zeroable>(len: usize, what: &str) -> Result<Aligned<T>> {
    let mut memory = Aligned::zeroed(len, what)?;
    memory.ask_for_huge_pages();
    Ok(memory)
}

/// Numbers of a vector that are converted together.
const PIECE: usize = 64;

/// From the first cell of a vector to that of its piece number `at`.
fn piece_start(at: usize, lane: Option<usize>) -> usize {
    at * PIECE * if lane.is_some() { LANES } else { 1 }
}

/// Stores numbers one after the other, or each in this lane of a vector of [`LANES`].
#[inline(always)]
fn put<T: Copy>(cells: &mut [T], lane: Option<usize>, from: &[T]) {
    match lane {
        None => cells[..from.len()].copy_from_slice(from),
        Some(lane) => {
            let (vectors, _) = cells.as_chunks_mut::<LANES>();
            vectors.iter_mut().zip(from).for_each(|(vector, &from)| vector[lane % LANES] = from);
        }
    }
}

/// Int8 codes of a vector, stored as [`put`] does; gives the scale.
struct Quantize<'a> {
    x: &'a [f32],
    codes: &'a mut [i8],
    lane: Option<usize>,
}

impl NullaryFnOnce for Quantize<'_> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        let (scale, inverse) = activation::span_scale(self.x);
        let mut codes = [0; PIECE];
        for (at, x) in self.x.chunks(PIECE).enumerate() {
            for (code, &x) in codes.iter_mut().zip(x) {
                // |x · inverse| is at most 127 and a rounding error: no clamp. (NaN: the scale is NaN too.)
                *code = (x * inverse + ROUND).to_bits() as i8;
            }
            put(&mut self.codes[piece_start(at, self.lane)..], self.lane, &codes[..x.len()]);
        }
        scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { layers: 2, sequences: 2, context: 13, kv_heads: 3, head_dim: 10 };

    #[test]
    fn vectors_are_where_they_were_stored() {
        let heads = Heads { query: 3, kv: 3, dim: 10 };
        let row = Row { token: 0, sequence: 1, position: 12, output: true };
        let qkv: Vec<f32> = (0..heads.fused_width()).map(|i| i as f32 - 20.0).collect();
        let mut kv = Kv::new(SHAPE, KvFormat::F16).unwrap();
        kv.store(Isa::detect(), 1, &[row], &qkv, heads);
        for head in 0..3 {
            let [Vectors::F16(keys), Vectors::F16(values)] = kv.vectors(1, 1, head, 8..13) else { panic!() };
            assert_eq!((keys.len(), values.len(), &values[..64]), (80, 80, &[0; 64][..]));
            let expected = |part: usize, i: usize| half::f16::from_f32(qkv[30 * part + head * 10 + i]).to_bits();
            for (at, &key) in keys.iter().enumerate() {
                // The fifth position of its block.
                assert_eq!(key, if at % LANES == 4 { expected(1, at / LANES) } else { 0 });
            }
            (0..10).for_each(|i| assert_eq!(values[64 + i], expected(2, i)));
        }
        let [Vectors::F16(other), _] = kv.vectors(1, 0, 0, 0..13) else { panic!() };
        assert!(other.iter().all(|&bits| bits == 0));
    }

    #[test]
    fn every_vector_has_a_place_of_its_own_and_short_texts_lie_together() {
        for context in [13, CHUNK, CHUNK + 1, 2 * CHUNK + 44] {
            let shape = KvShape { context, ..SHAPE };
            let kv = Kv::new(shape, KvFormat::F16).unwrap();
            let per_position = shape.layers * shape.kv_heads;
            let mut taken = vec![false; shape.sequences * per_position * context.next_multiple_of(LANES)];
            for sequence in 0..shape.sequences {
                let start = sequence * per_position * context.next_multiple_of(LANES);
                for position in 0..context {
                    let end = (position / CHUNK * CHUNK + CHUNK).min(context.next_multiple_of(LANES));
                    for (layer, head) in
                        (0..shape.layers).flat_map(|layer| (0..shape.kv_heads).map(move |head| (layer, head)))
                    {
                        let index = kv.index(layer, sequence as u32, head, position);
                        assert!(!std::mem::replace(&mut taken[index], true), "{layer} {sequence} {head} {position}");
                        assert!((start..start + per_position * end).contains(&index), "beyond the text's chunks");
                        assert_eq!(index % LANES, position % LANES, "blocks of keys are whole");
                    }
                }
            }
        }
    }

    #[test]
    fn vectors_of_the_last_chunk_are_where_they_were_stored() {
        let heads = Heads { query: 3, kv: 3, dim: 10 };
        let shape = KvShape { context: CHUNK + 20, ..SHAPE };
        let qkv: Vec<f32> = (0..heads.fused_width()).map(|i| i as f32 - 20.0).collect();
        let mut kv = Kv::new(shape, KvFormat::F32).unwrap();
        let position = CHUNK as u32 + 17;
        kv.store(Isa::detect(), 1, &[Row { token: 0, sequence: 1, position, output: true }], &qkv, heads);
        let [Vectors::F32(keys), Vectors::F32(values)] = kv.vectors(1, 1, 2, CHUNK..CHUNK + 18) else { panic!() };
        assert_eq!((keys.len(), values.len()), (3 * LANES * 10, 18 * 16));
        let key: Vec<f32> = keys[2 * LANES * 10..].iter().skip(1).step_by(LANES).copied().collect();
        assert_eq!((&key[..], &values[17 * 16..][..10]), (&qkv[50..60], &qkv[80..90]));
    }

    #[test]
    fn long_vectors_are_stored_piece_by_piece() {
        let heads = Heads { query: 1, kv: 1, dim: 2 * PIECE + 3 };
        let qkv: Vec<f32> = (0..heads.fused_width()).map(|i| (i % 97) as f32).collect();
        let rows = [0, 1].map(|position| Row { token: 0, sequence: 0, position, output: true });
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Int8] {
            let shape = KvShape { layers: 1, sequences: 1, context: 3, kv_heads: 1, head_dim: heads.dim };
            let mut kv = Kv::new(shape, format).unwrap();
            kv.store(Isa::detect(), 0, &rows, &[&qkv[..], &qkv].concat(), heads);
            let [keys, values] = kv.vectors(0, 0, 0, 0..2).map(|vectors| -> Vec<f32> {
                match vectors {
                    Vectors::F32(values) => values.to_vec(),
                    Vectors::F16(bits) => bits.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect(),
                    Vectors::Int8(codes, scales) => codes.iter().map(|&code| f32::from(code) * scales[1]).collect(),
                }
            });
            let near = |got: f32, expected: f32| (got - expected).abs() <= 0.4;
            for i in 0..heads.dim {
                let [key, value] = [1, 2].map(|part| qkv[part * heads.dim + i]);
                assert!(near(keys[LANES * i], key) && near(keys[LANES * i + 1], key), "{format:?} {i}");
                assert!(near(values[i], value) && near(values[kv.stride() + i], value), "{format:?} {i}");
            }
        }
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
                for (lane, step) in [(None, 1), (Some(3), LANES)] {
                    let mut codes = vec![0; x.len() * step];
                    assert_eq!(isa.vectorize(Quantize { x: &x, codes: &mut codes, lane }), scale);
                    assert!(codes.into_iter().skip(lane.unwrap_or(0)).step_by(step).eq(expected.iter().copied()));
                }
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
