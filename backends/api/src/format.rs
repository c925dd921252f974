//! The number formats of weights: names, sizes, and what activations they are multiplied with.

use std::fmt;
use std::str::FromStr;

use crate::{Activation, Error};

/// The columns that share one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// 32 columns.
    G32,
    /// 64 columns.
    G64,
    /// 128 columns.
    G128,
    /// All columns of the row.
    Row,
}

impl Group {
    /// Columns of one group in a row of `columns`; the last group of a row may be shorter.
    pub fn columns(self, columns: usize) -> usize {
        match self {
            Group::G32 => 32,
            Group::G64 => 64,
            Group::G128 => 128,
            Group::Row => columns.max(1),
        }
    }

    /// Groups in a row of `columns`.
    pub fn count(self, columns: usize) -> usize {
        columns.div_ceil(self.columns(columns))
    }
}

/// What a group of INT4 codes holds besides its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroKind {
    /// Nothing: `w = s · q`, q in -8..=7.
    Symmetric,
    /// An integer zero point (AWQ, GPTQ): `w = s · (u - z)`, u in 0..=15.
    Point,
    /// A minimum (Q4_1, Q4_K): `w = s · u + m`, u in 0..=15.
    Min,
}

/// The number format of a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// bfloat16.
    Bf16,
    /// `w = s · t`, t in {-1, 0, 1}; one f32 scale per row, 2 bits per weight.
    Ternary,
    /// 4-bit codes with an f16 scale per group.
    Int4 {
        /// Columns that share a scale.
        group: Group,
        /// What a group holds besides its scale.
        zero: ZeroKind,
    },
    /// `w = s · q`, q in -127..=127, with an f16 scale per group.
    Int8 {
        /// Columns that share a scale.
        group: Group,
    },
}

impl Format {
    /// Bytes of a `[rows, columns]` matrix, or `None` where that is beyond 64 bits.
    pub fn bytes(self, rows: usize, columns: usize) -> Option<u64> {
        let (rows, columns) = (rows as u64, columns as u64);
        let groups = |group: Group| group.count(columns as usize) as u64;
        let row = match self {
            Format::F32 => columns.checked_mul(4)?,
            Format::F16 | Format::Bf16 => columns.checked_mul(2)?,
            Format::Ternary => columns.div_ceil(4) + 4,
            Format::Int4 { group, zero } => {
                let per_group = match zero {
                    ZeroKind::Symmetric => 2,
                    ZeroKind::Point => 3,
                    ZeroKind::Min => 4,
                };
                columns.div_ceil(2) + per_group * groups(group)
            }
            Format::Int8 { group } => columns.checked_add(2 * groups(group))?,
        };
        rows.checked_mul(row)
    }

    /// The activations that a matrix of this format is multiplied with unless it says otherwise: BitNet
    /// models were trained with one scale per token; INT4 and INT8 take a scale per 32 columns because
    /// outlier channels ruin a per-token scale.
    pub fn activation(self) -> Activation {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 => Activation::Float,
            Format::Ternary => Activation::Token,
            Format::Int4 { .. } | Format::Int8 { .. } => Activation::Block,
        }
    }

    /// Whether every matrix of format `other` can be written in this one with the same weights, code by code: a scale
    /// may repeat in smaller groups, a symmetric code has the zero point 8 or the minimum -8 s, a code with a zero point
    /// fits in 8 bits. See [`RowBuffer::copy_to`](crate::RowBuffer::copy_to). F32 holds the other floats.
    pub fn holds(self, other: Format) -> bool {
        match (self, other) {
            (Format::Int4 { group, zero }, Format::Int4 { group: other, zero: kind }) => {
                group <= other && (zero == kind || kind == ZeroKind::Symmetric)
            }
            (Format::Int8 { group }, Format::Int4 { group: other, zero }) => group <= other && zero != ZeroKind::Min,
            (Format::Int8 { group }, Format::Int8 { group: other }) => group <= other,
            (Format::F32, Format::F16 | Format::Bf16) => true,
            _ => self == other,
        }
    }

    /// The smallest format that [holds](Format::holds) all of `formats`, if there is one.
    pub fn common(formats: &[Format]) -> Option<Format> {
        const MEETING_POINTS: [Format; 4] = [
            Format::Int4 { group: Group::G32, zero: ZeroKind::Point },
            Format::Int4 { group: Group::G32, zero: ZeroKind::Min },
            Format::Int8 { group: Group::G32 },
            Format::F32,
        ];
        let holds_all = |format: &Format| formats.iter().all(|&other| format.holds(other));
        let size = |format: &Format| format.bytes(1, 1 << 12);
        formats.iter().chain(&MEETING_POINTS).copied().filter(holds_all).min_by_key(size)
    }

    /// Whether the weights are floats as they are.
    pub fn is_dense(self) -> bool {
        matches!(self, Format::F32 | Format::F16 | Format::Bf16)
    }
}

/// The names that `--weights` takes, with the formats they mean.
const NAMES: [(&str, Format); 14] = [
    ("f32", Format::F32),
    ("f16", Format::F16),
    ("bf16", Format::Bf16),
    ("ternary", Format::Ternary),
    ("int8", Format::Int8 { group: Group::G32 }),
    ("int8-row", Format::Int8 { group: Group::Row }),
    ("int4-g32", Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric }),
    ("int4-g64", Format::Int4 { group: Group::G64, zero: ZeroKind::Symmetric }),
    ("int4-g128", Format::Int4 { group: Group::G128, zero: ZeroKind::Symmetric }),
    ("int4-row", Format::Int4 { group: Group::Row, zero: ZeroKind::Symmetric }),
    ("int4-g32-min", Format::Int4 { group: Group::G32, zero: ZeroKind::Min }),
    ("int4-g64-min", Format::Int4 { group: Group::G64, zero: ZeroKind::Min }),
    ("int4-g128-min", Format::Int4 { group: Group::G128, zero: ZeroKind::Min }),
    ("int4-row-min", Format::Int4 { group: Group::Row, zero: ZeroKind::Min }),
];

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = |group: &Group| match group {
            Group::G32 => "-g32",
            Group::G64 => "-g64",
            Group::G128 => "-g128",
            Group::Row => "-row",
        };
        if let Some((name, _)) = NAMES.iter().find(|(_, format)| format == self) {
            return f.pad(name);
        }
        match self {
            Format::Int4 { group: g, .. } => f.pad(&format!("int4{}-point", group(g))),
            Format::Int8 { group: g } => f.pad(&format!("int8{}", group(g))),
            _ => unreachable!("every other format has a name"),
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        NAMES.iter().find(|(name, _)| *name == text).map(|(_, format)| *format).ok_or_else(|| {
            let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
            Error::Invalid(format!("'{text}' is no weight format: it is one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, format) in NAMES {
            assert_eq!(name.parse::<Format>().unwrap(), format);
            assert_eq!(format.to_string(), name);
        }
        let with_point = Format::Int4 { group: Group::G64, zero: ZeroKind::Point };
        assert_eq!(with_point.to_string(), "int4-g64-point");
        assert!("int3".parse::<Format>().unwrap_err().to_string().contains("int4-g32"));
    }

    #[test]
    fn the_common_format_is_the_smallest_that_holds_all() {
        let int4 = |group, zero| Format::Int4 { group, zero };
        let (symmetric, point, min) = (ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min);
        let int8 = Format::Int8 { group: Group::G32 };
        let cases = [
            (vec![Format::Ternary; 2], Some(Format::Ternary)),
            (vec![int4(Group::G128, symmetric), int4(Group::G32, symmetric)], Some(int4(Group::G32, symmetric))),
            (vec![int4(Group::G32, symmetric), int4(Group::G32, min)], Some(int4(Group::G32, min))),
            (vec![int4(Group::G32, symmetric), int4(Group::G128, min)], Some(int4(Group::G32, min))),
            (vec![int4(Group::G128, point), int4(Group::G32, symmetric)], Some(int4(Group::G32, point))),
            (vec![int4(Group::G32, point), int8], Some(int8)),
            (vec![int4(Group::G32, min), int8], None),
            (vec![int4(Group::G32, min), int4(Group::G32, point)], None),
            (vec![Format::F16, Format::Bf16], Some(Format::F32)),
            (vec![Format::F16, int8], None),
            (vec![Format::Ternary, int8], None),
        ];
        for (formats, expected) in cases {
            assert_eq!(Format::common(&formats), expected, "{formats:?}");
        }
    }

    #[test]
    fn sizes_count_every_byte() {
        assert_eq!(Format::F32.bytes(3, 5), Some(60));
        assert_eq!(Format::Ternary.bytes(2, 5), Some(2 * (2 + 4)));
        // 33 columns: 17 bytes of nibbles and two groups of an f16 scale.
        assert_eq!("int4-g32".parse::<Format>().unwrap().bytes(1, 33), Some(17 + 4));
        assert_eq!(Format::Int4 { group: Group::G32, zero: ZeroKind::Min }.bytes(1, 32), Some(16 + 4));
        assert_eq!("int8-row".parse::<Format>().unwrap().bytes(4, 100), Some(4 * 102));
        assert_eq!(Format::F32.bytes(usize::MAX, 2), None);
    }
}
