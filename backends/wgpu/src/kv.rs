//! The KV cache on the device: buffers for each layer, as `cache.wgsl` lays them out.

use trine_backend::{Error, KvFormat, KvShape, Result};

use crate::device::Device;

/// Columns of the largest head that the attention shaders take.
const LARGEST_HEAD: usize = 192;

/// Keys and values of every layer and sequence.
#[derive(Debug)]
pub struct Cache {
    pub(crate) shape: KvShape,
    pub(crate) format: KvFormat,
    /// Positions of a sequence, in whole groups of 32.
    pub(crate) context: usize,
    pub(crate) layers: Vec<Layer>,
}

#[derive(Debug)]
pub(crate) struct Layer {
    /// Keys, then values.
    pub(crate) vectors: wgpu::Buffer,
    /// Of INT8 vectors: keys', then values'.
    pub(crate) scales: wgpu::Buffer,
}

impl Cache {
    pub(crate) fn new(device: &Device, shape: KvShape, format: KvFormat) -> Result<Cache> {
        if shape.head_dim > LARGEST_HEAD {
            return Err(Error::Unsupported(format!(
                "heads of {} columns are above the {LARGEST_HEAD} that the wgpu backend has shaders for",
                shape.head_dim
            )));
        }
        let context = shape.context.next_multiple_of(32);
        let pieces = shape.head_dim.div_ceil(4 << cache_constant(format));
        let vectors = [context, shape.sequences, shape.kv_heads]
            .iter()
            .try_fold(1u64, |product, &factor| product.checked_mul(factor as u64));
        let bytes = vectors.and_then(|vectors| vectors.checked_mul(32 * pieces as u64));
        let (Some(vectors), Some(bytes)) = (vectors, bytes) else {
            return Err(Error::Unsupported(format!("a KV cache of {shape:?} is beyond 64 bits")));
        };
        let what = format!(
            "one layer's keys and values ({} positions of {} sequences; a smaller context would take less)",
            shape.context, shape.sequences
        );
        let scale_bytes = if format == KvFormat::Int8 { 8 * vectors } else { 16 };
        let layers = (0..shape.layers)
            .map(|_| Ok(Layer { vectors: device.storage(&what, bytes)?, scales: device.storage(&what, scale_bytes)? }));
        Ok(Cache { shape, format, context, layers: layers.collect::<Result<_>>()? })
    }

    /// Vectors of keys in a layer.
    pub(crate) fn vectors(&self) -> usize {
        self.shape.sequences * self.shape.kv_heads * self.context
    }
}

/// The shaders' number for a format.
pub(crate) fn cache_constant(format: KvFormat) -> u32 {
    match format {
        KvFormat::F32 => 0,
        KvFormat::F16 => 1,
        KvFormat::Int8 => 2,
    }
}
