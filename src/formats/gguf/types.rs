//! The types of GGUF's tensors: numbers, names, sizes.

use std::fmt;

use trine_backend::{Format, Group, ZeroKind};

/// A tensor type that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// bfloat16.
    Bf16,
    /// 32 4-bit codes, `d (q - 8)`.
    Q4_0,
    /// 32 4-bit codes, `d q + m`.
    Q4_1,
    /// 32 5-bit codes, `d (q - 16)`.
    Q5_0,
    /// 32 5-bit codes, `d q + m`.
    Q5_1,
    /// 32 8-bit codes, `d q`.
    Q8_0,
    /// 256 4-bit codes in groups of 32 that have 6-bit scales and minima.
    Q4K,
    /// 256 5-bit codes in groups of 32 that have 6-bit scales and minima.
    Q5K,
    /// 256 6-bit codes in groups of 16 that have 8-bit scales.
    Q6K,
    /// 256 ternary codes, five to a byte.
    Tq1_0,
    /// 256 ternary codes, four to a byte.
    Tq2_0,
    /// Ternary codes, four to a byte, with one scale behind the whole tensor (bitnet.cpp).
    I2S,
}

/// Number, name, elements and bytes of a block.
const TYPES: [(GgmlType, u32, &str, usize, usize); 14] = [
    (GgmlType::F32, 0, "F32", 1, 4),
    (GgmlType::F16, 1, "F16", 1, 2),
    (GgmlType::Q4_0, 2, "Q4_0", 32, 18),
    (GgmlType::Q4_1, 3, "Q4_1", 32, 20),
    (GgmlType::Q5_0, 6, "Q5_0", 32, 22),
    (GgmlType::Q5_1, 7, "Q5_1", 32, 24),
    (GgmlType::Q8_0, 8, "Q8_0", 32, 34),
    (GgmlType::Q4K, 12, "Q4_K", 256, 144),
    (GgmlType::Q5K, 13, "Q5_K", 256, 176),
    (GgmlType::Q6K, 14, "Q6_K", 256, 210),
    (GgmlType::Bf16, 30, "BF16", 1, 2),
    (GgmlType::Tq1_0, 34, "TQ1_0", 256, 54),
    (GgmlType::Tq2_0, 35, "TQ2_0", 256, 66),
    // The blocks run through the whole tensor, not through a row.
    (GgmlType::I2S, 36, "I2_S", 4, 1),
];

/// Types that exist and are not read, for errors.
const OTHERS: [(u32, &str); 23] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (38, "TL1"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (137, "I2_S of ik_llama.cpp"),
];

/// Bytes that follow the codes of an I2_S tensor: its scale, padded.
const I2S_TAIL: u64 = 32;

impl GgmlType {
    /// The type with this number.
    ///
    /// # Errors
    /// It is not read: names it and what is.
    pub fn from_id(id: u32) -> Result<Self, String> {
        if let Some(&(found, ..)) = TYPES.iter().find(|(_, number, ..)| *number == id) {
            return Ok(found);
        }
        let name = OTHERS.iter().find(|(number, _)| *number == id).map_or("unknown", |(_, name)| name);
        let read: Vec<_> = TYPES.iter().map(|(_, _, name, ..)| *name).collect();
        Err(format!("type {id} ({name}) is not read: {} are", read.join(", ")))
    }

    fn row(self) -> &'static (GgmlType, u32, &'static str, usize, usize) {
        TYPES.iter().find(|(known, ..)| *known == self).expect("every type is in the table")
    }

    /// Elements of a block.
    pub fn block(self) -> usize {
        self.row().3
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Bytes of a tensor with rows of `columns` elements, `elements` in all; `None` where they are no whole blocks or
    /// beyond 64 bits.
    pub fn bytes(self, columns: u64, elements: u64) -> Option<u64> {
        let block = self.block() as u64;
        let whole = if self == GgmlType::I2S { elements } else { columns };
        if !whole.is_multiple_of(block) {
            return None;
        }
        let codes = (elements / block).checked_mul(self.block_bytes() as u64)?;
        if self == GgmlType::I2S { codes.checked_add(I2S_TAIL) } else { Some(codes) }
    }

    /// The number format that rows come in, and whether it keeps every code. Scales of Q4_K are rounded to f16.
    pub fn native(self) -> (Format, bool) {
        let int4 = |zero| Format::Int4 { group: Group::G32, zero };
        let int8 = Format::Int8 { group: Group::G32 };
        match self {
            GgmlType::F32 => (Format::F32, true),
            GgmlType::F16 => (Format::F16, true),
            GgmlType::Bf16 => (Format::Bf16, true),
            GgmlType::Q4_0 => (int4(ZeroKind::Symmetric), true),
            GgmlType::Q4_1 | GgmlType::Q4K => (int4(ZeroKind::Min), true),
            GgmlType::Q5_0 | GgmlType::Q8_0 => (int8, true),
            GgmlType::Q5_1 | GgmlType::Q5K | GgmlType::Q6K => (int8, false),
            GgmlType::Tq1_0 | GgmlType::Tq2_0 | GgmlType::I2S => (Format::Ternary, true),
        }
    }

    /// Whether the weights are -1, 0, 1 times a scale.
    pub fn is_ternary(self) -> bool {
        matches!(self, GgmlType::Tq1_0 | GgmlType::Tq2_0 | GgmlType::I2S)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().2)
    }
}
