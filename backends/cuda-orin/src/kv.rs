//! The KV cache on the device, as the attention kernels read it.

use trine_backend::{Error, KvFormat, KvShape, Result};

use crate::memory::{Memory, Piece};

/// Columns of the largest head that the attention kernels take.
const LARGEST_HEAD: usize = 256;

/// Keys and values of every layer and sequence.
#[derive(Debug)]
pub struct Cache {
    pub(crate) shape: KvShape,
    pub(crate) format: KvFormat,
    pub(crate) layers: Vec<Layer>,
}

/// One layer: `[sequence][head][position][dim]`, each vector padded to 8 columns.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) keys: Piece,
    pub(crate) values: Piece,
    /// Of INT8 keys and values: `[sequence][head][position]`.
    pub(crate) scales: Option<[Piece; 2]>,
}

impl Cache {
    pub(crate) fn new(memory: &Memory, shape: KvShape, format: KvFormat) -> Result<Cache> {
        if shape.head_dim > LARGEST_HEAD {
            return Err(Error::Unsupported(format!(
                "heads of {} columns are above the {LARGEST_HEAD} that the cuda-orin backend has kernels for",
                shape.head_dim
            )));
        }
        let vectors = [shape.context, shape.sequences, shape.kv_heads]
            .iter()
            .try_fold(1u64, |product, &factor| product.checked_mul(factor as u64));
        let bytes = vectors.and_then(|vectors| vectors.checked_mul(vector_bytes(shape.head_dim, format)));
        let fits = u32::try_from(shape.context).is_ok();
        let (Some(vectors), Some(bytes)) = (vectors, bytes.filter(|_| fits)) else {
            return Err(Error::Unsupported(format!("a KV cache of {shape:?} is beyond what can be counted")));
        };
        let what = format!(
            "one layer's keys and values ({} positions of {} sequences; a smaller context would take less)",
            shape.context, shape.sequences
        );
        let layer = |_| {
            let scales = || memory.zeros(&what, 4 * vectors);
            let scales = if format == KvFormat::Int8 { Some([scales()?, scales()?]) } else { None };
            Ok(Layer { keys: memory.zeros(&what, bytes)?, values: memory.zeros(&what, bytes)?, scales })
        };
        Ok(Cache { shape, format, layers: (0..shape.layers).map(layer).collect::<Result<_>>()? })
    }

    /// Addresses of a layer's keys, values, and their scales; 0 where there are none.
    pub(crate) fn addresses(&self, layer: usize) -> [u64; 4] {
        let Layer { keys, values, scales } = &self.layers[layer];
        let [key_scales, value_scales] = scales.as_ref().map_or([0; 2], |scales| scales.each_ref().map(Piece::address));
        [keys.address(), values.address(), key_scales, value_scales]
    }
}

/// Bytes of a vector in memory, its scale left out.
fn vector_bytes(dim: usize, format: KvFormat) -> u64 {
    let bytes = match format {
        KvFormat::F32 => 4,
        KvFormat::F16 => 2,
        KvFormat::Int8 => 1,
    };
    bytes * dim.next_multiple_of(8) as u64
}
