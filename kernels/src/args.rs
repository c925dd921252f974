//! The arguments of kernels: each takes one of these structs by value. Their twins are in `cuda/args.cuh`, where the compiler
//! checks each size against the one that is stated here.
//!
//! Addresses are the device's; 0 stands for "none" where that is allowed.

/// A device address.
pub type Address = u64;

/// A kernel's argument: plain words without padding, so that its bytes can be handed to the driver.
pub trait Args: Copy {
    /// The words, for `cuLaunchKernel`.
    fn bytes(&self) -> &[u8];
}

macro_rules! args {
    ($(#[$doc:meta])* $name:ident, $size:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)+
        }

        // No padding: the fields fill the struct.
        const _: () = assert!(size_of::<$name>() == $size && $size == 0 $(+ size_of::<$kind>())+);

        #[allow(unsafe_code)] // Bytes of plain words; see SAFETY.
        impl Args for $name {
            fn bytes(&self) -> &[u8] {
                // SAFETY: the struct is made of integers and floats without padding, as is asserted above, so that all
                // of its bytes are initialised; the slice borrows `self`.
                unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
            }
        }
    };
}

args! {
    /// One row of a step.
    StepRow, 16 {
        /// Token id.
        token: u32,
        /// Sequence in the KV cache.
        sequence: u32,
        /// Position in the sequence.
        position: u32,
        /// The row that `select_rows` copies to the output of this index.
        source: u32,
    }
}

args! {
    /// `gemv` and `gemm`.
    Product, 128 {
        /// Weight codes.
        codes: Address,
        /// Their scales.
        scales: Address,
        /// Zero points or minima, or 0.
        zeros: Address,
        /// Codes of the activations (without NORM).
        x_codes: Address,
        /// Their spans (without NORM).
        x_spans: Address,
        /// Activations as floats (with NORM).
        x: Address,
        /// The norm's weight (with NORM).
        norm: Address,
        /// Added to each output, or 0.
        bias: Address,
        /// The outputs as floats; 0 is allowed with the gated epilogue.
        out: Address,
        /// Codes of the outputs (gated epilogue).
        out_codes: Address,
        /// Their spans (gated epilogue).
        out_spans: Address,
        /// Rows of the matrix.
        rows: u32,
        /// Columns.
        columns: u32,
        /// Units of a segment.
        per: u32,
        /// Scales of a row.
        slots: u32,
        /// Rows of the activations.
        tokens: u32,
        /// Floats of a row of `out`.
        out_pitch: u32,
        /// Units of a segment of the outputs (gated epilogue).
        out_per: u32,
        /// 0: Silu, 1: squared relu (gated epilogue).
        gate: u32,
        /// Of the norm.
        eps: f32,
        /// Not looked at.
        unused: u32,
    }
}

args! {
    /// `dense`.
    Dense, 56 {
        /// `[rows, pitch]`.
        weights: Address,
        /// `[tokens, columns]`.
        x: Address,
        /// Added to each output, or 0.
        bias: Address,
        /// `[tokens, rows]`.
        out: Address,
        /// Rows of the matrix.
        rows: u32,
        /// Columns.
        columns: u32,
        /// Columns of a row in memory.
        pitch: u32,
        /// Rows of the activations.
        tokens: u32,
        /// Floats of a row of `out`.
        out_pitch: u32,
        /// Not looked at.
        unused: u32,
    }
}

args! {
    /// `embed`.
    Embed, 56 {
        /// Weight codes, or the floats.
        codes: Address,
        /// Their scales, or 0.
        scales: Address,
        /// Zero points or minima, or 0.
        zeros: Address,
        /// The step's rows.
        step: Address,
        /// `[rows, columns]`.
        out: Address,
        /// Columns.
        columns: u32,
        /// Units of a segment; of floats, columns of a row in memory.
        per: u32,
        /// Scales of a row.
        slots: u32,
        /// Rows of the table: a token beyond them gives NaN.
        rows: u32,
    }
}

args! {
    /// `quantize`.
    Quantize, 32 {
        /// `[rows, columns]`.
        x: Address,
        /// The codes.
        codes: Address,
        /// The spans.
        spans: Address,
        /// Columns.
        columns: u32,
        /// Units of a segment.
        per: u32,
    }
}

args! {
    /// `rms_norm`.
    RmsNorm, 64 {
        /// `[rows, columns]`.
        x: Address,
        /// Added to x first, or 0.
        y: Address,
        /// The norm's weight.
        weight: Address,
        /// The result as floats, or 0.
        out: Address,
        /// The result's codes (with QUANTIZE).
        codes: Address,
        /// Their spans (with QUANTIZE).
        spans: Address,
        /// Columns.
        columns: u32,
        /// Units of a segment.
        per: u32,
        /// Added to the mean square.
        eps: f32,
        /// Not looked at.
        unused: u32,
    }
}

args! {
    /// `add`.
    Add, 24 {
        /// `[rows, columns]`.
        x: Address,
        /// What is added.
        y: Address,
        /// Columns.
        columns: u32,
        /// Floats of a row of y; 0: one row for all.
        y_pitch: u32,
    }
}

args! {
    /// `head_norm`.
    HeadNorm, 40 {
        /// `[rows, (query + 2 kv) dim]`.
        qkv: Address,
        /// Weights of query heads.
        query: Address,
        /// Weights of key heads.
        key: Address,
        /// Columns of a head.
        dim: u32,
        /// Query heads.
        query_heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Added to the mean square.
        eps: f32,
    }
}

args! {
    /// `rope_store_kv`.
    RopeStoreKv, 72 {
        /// The step's rows.
        step: Address,
        /// `[rows, (query + 2 kv) dim]`.
        qkv: Address,
        /// `[positions, dim]`: cosines, sines (with ROPE).
        table: Address,
        /// The layer's keys (with STORE).
        keys: Address,
        /// The layer's values (with STORE).
        values: Address,
        /// Scales of INT8 keys.
        key_scales: Address,
        /// Scales of INT8 values.
        value_scales: Address,
        /// Columns of a head.
        dim: u32,
        /// Query heads.
        query_heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Positions of a sequence in the cache.
        context: u32,
    }
}

args! {
    /// `attend` and `attend_rows`.
    Attend, 128 {
        /// The step's rows.
        step: Address,
        /// `[rows, (query + 2 kv) dim]`.
        qkv: Address,
        /// `[positions, dim]`: cosines, sines (with ROPE).
        table: Address,
        /// The layer's keys.
        keys: Address,
        /// The layer's values.
        values: Address,
        /// Scales of INT8 keys.
        key_scales: Address,
        /// Scales of INT8 values.
        value_scales: Address,
        /// `[rows, query heads, chunks, dim + 2]`.
        partials: Address,
        /// `[rows, kv heads * batches]`, zeroed once.
        counters: Address,
        /// `[rows, query heads * dim]`, or 0 with QUANTIZE.
        out: Address,
        /// Codes of the result (with QUANTIZE).
        codes: Address,
        /// Their spans (with QUANTIZE).
        spans: Address,
        /// Columns of a head.
        dim: u32,
        /// Query heads.
        query_heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Positions of a sequence in the cache.
        context: u32,
        /// Chunks that `partials` has room for: the grid's.
        chunks: u32,
        /// Units of a segment of the result (with QUANTIZE).
        per: u32,
        /// `1 / sqrt(dim)`.
        scale: f32,
        /// Rows of the step (`attend_rows`).
        rows: u32,
    }
}

args! {
    /// `gated`.
    Gated, 48 {
        /// `[rows, 2 columns]`: gate, up.
        gate_up: Address,
        /// `[rows, columns]`, or 0.
        out: Address,
        /// Codes of the result (with QUANTIZE).
        codes: Address,
        /// Their spans (with QUANTIZE).
        spans: Address,
        /// Columns of the result.
        columns: u32,
        /// Units of a segment.
        per: u32,
        /// 0: Silu, 1: squared relu.
        gate: u32,
        /// Not looked at.
        unused: u32,
    }
}

args! {
    /// `select_rows`.
    SelectRows, 32 {
        /// The step's rows, of which `source` is read.
        step: Address,
        /// `[rows, columns]`.
        x: Address,
        /// `[outputs, columns]`.
        out: Address,
        /// Columns.
        columns: u32,
        /// Not looked at.
        unused: u32,
    }
}

args! {
    /// `argmax`.
    Argmax, 48 {
        /// `[rows, columns]`.
        x: Address,
        /// `{f32, u32}` `[rows, blocks]`.
        partials: Address,
        /// `[rows]`, zeroed once.
        counters: Address,
        /// `[rows]`: the token ids.
        out: Address,
        /// Step rows that go on with the tokens, or 0.
        next: Address,
        /// Columns.
        columns: u32,
        /// Not looked at.
        unused: u32,
    }
}

args! {
    /// `copy`.
    Copy16, 24 {
        /// Where from.
        from: Address,
        /// Where to.
        to: Address,
        /// Vectors of 16 bytes.
        vectors: u64,
    }
}
