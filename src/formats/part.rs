//! A part of a matrix: the rows of one stored matrix, whatever the file keeps them as.
//!
//! The loader fuses parts (q|k|v, gate|up) and asks each for its rows as codes or as floats; what a tensor's bytes mean
//! is known here and in the formats' own files, and nowhere else.

use trine_backend::{CodedRow, Format, HostMatrix, RowBuffer};

use super::bitnet::{self, OnlineTernary, PackedTernary};
use super::tensor::{Dtype, Tensor, check_finite};
use super::words::{GroupSize, Packing};
use crate::{Error, Result};

/// How a checkpoint stores the matrices of its layers, where dtypes alone do not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// As the tensors' own types say: floats, or the blocks of GGUF.
    None,
    /// BitNet b1.58, see [`bitnet`].
    Bitnet {
        /// Products are divided by `weight_scale` (`linear_class: bitlinear`), not multiplied.
        divide: bool,
        /// The weights are floats that are made ternary on loading (`quantization_mode: online`); there is no
        /// `weight_scale`.
        online: bool,
    },
    /// Our own layout, see [`trine`](super::trine). Each matrix's tensors say its format.
    Trine {
        /// The layers' activations have one scale per token, as BitNet models were trained.
        per_token: bool,
    },
    /// AWQ or GPTQ, see [`words`](super::words).
    Words {
        /// Whose layout it is.
        packing: Packing,
        /// Columns that share a scale.
        group: GroupSize,
    },
}

impl Quantization {
    /// Whether the linear layers are ternary.
    pub fn is_ternary(&self) -> bool {
        matches!(self, Quantization::Bitnet { .. })
    }

    /// Whether the layers' activations have one scale per token, as BitNet models were trained.
    pub fn is_per_token(&self) -> bool {
        matches!(self, Quantization::Bitnet { .. } | Quantization::Trine { per_token: true })
    }

    /// How embedding and lm_head are stored where the layers are stored like this.
    pub fn of_head(self) -> Self {
        match self {
            Quantization::Trine { .. } => Quantization::Trine { per_token: false },
            _ => Quantization::None,
        }
    }

    /// What follows a part's name and a dot in the names of its tensors, the bias aside.
    pub fn tensors(self) -> &'static [&'static str] {
        match self {
            Quantization::Bitnet { online: false, .. } => &["weight", "weight_scale"],
            Quantization::None | Quantization::Bitnet { .. } => &["weight"],
            Quantization::Trine { .. } => &["weight", "weight_scale", "weight_zero", "weight_min"],
            Quantization::Words { .. } => &["qweight", "qzeros", "scales", "g_idx"],
        }
    }
}

/// What a file's header says about a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartInfo {
    /// The tensor that holds it, by its name in the file.
    pub tensor: String,
    /// The number format that its rows come in.
    pub format: Format,
    /// Its type in the file's own words, such as `BF16` or `Q6_K`.
    pub stored: String,
    /// Whether `format` keeps what is stored; if not, weights are quantised anew.
    pub exact: bool,
}

/// The rows of one stored matrix, open for reading. Rows are read in any order, on several threads.
pub trait Part: Send + Sync {
    /// The number format that the rows come in: dense, or one that holds the stored codes. Where none does, the one that
    /// [`Part::codes`] quantises to.
    fn format(&self) -> Format;

    /// Whether the weights are -1, 0, 1 times a scale: such a model was trained with one activation scale per token,
    /// whatever holds its codes.
    fn is_ternary(&self) -> bool {
        false
    }

    /// Writes the codes of `row` in [`Part::format`]; `out` is zero before. Not called where that is dense.
    ///
    /// # Errors
    /// Names the tensor: there is no such row, or it holds a code or scale that stands for nothing.
    fn codes(&self, row: usize, out: CodedRow<'_>) -> Result<()>;

    /// The weights of `row` as floats, none of them NaN or infinite.
    ///
    /// # Errors
    /// As [`Part::codes`].
    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()>;

    /// The whole matrix where its bytes are already those of [`Part::format`], without a copy; `None` where they are
    /// not, or are not sound: [`Part::codes`] says what is wrong.
    fn borrowed(&self) -> Option<HostMatrix<'_>> {
        None
    }

    /// An error about the tensor that holds the rows.
    fn error(&self, problem: &dyn std::fmt::Display) -> Error;

    /// Gives the file's pages back to the system; returns the bytes that the part has in the file.
    fn release(&self) -> u64;
}

/// Writes `row` of `part`, `columns` wide, into a row of `format`: code by code where the format holds them, else
/// quantised anew.
///
/// # Errors
/// What `part` returns, and an error that names its tensor for formats that are not made from floats.
pub fn write_row(part: &dyn Part, row: usize, columns: usize, format: Format, out: CodedRow<'_>) -> Result<()> {
    let native = part.format();
    if native == format {
        return part.codes(row, out);
    }
    let written = if !native.is_dense() && format.holds(native) {
        let mut buffer = RowBuffer::new(native, columns)?;
        part.codes(row, buffer.row())?;
        buffer.copy_to(format, out)
    } else {
        let mut values = vec![0.0; columns];
        part.floats(row, &mut values)?;
        match format {
            Format::Int4 { group, .. } | Format::Int8 { group } => out.quantize(group, &values),
            _ => return Err(part.error(&format_args!("{native} weights where {format} ones are needed"))),
        }
    };
    written.map_err(|problem| part.error(&problem))
}

/// The number format of dense weights of `tensor`.
///
/// # Errors
/// They are no floats.
pub(super) fn dense_format(tensor: &Tensor<'_>) -> Result<Format> {
    match tensor.dtype() {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(tensor.error(format_args!("dtype {other} where F32, F16 or BF16 is needed"))),
    }
}

/// Floats as they are.
pub(super) struct DensePart<'a> {
    tensor: Tensor<'a>,
    format: Format,
}

impl<'a> DensePart<'a> {
    pub(super) fn new(tensor: Tensor<'a>) -> Result<Self> {
        let format = dense_format(&tensor)?;
        Ok(Self { tensor, format })
    }
}

impl Part for DensePart<'_> {
    fn format(&self) -> Format {
        self.format
    }

    fn codes(&self, _row: usize, _out: CodedRow<'_>) -> Result<()> {
        Err(self.tensor.error("dense weights have no codes"))
    }

    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.tensor.row_f32(row, out)?;
        self.tensor.passed(row);
        check_finite(out, &self.tensor, row)
    }

    fn error(&self, problem: &dyn std::fmt::Display) -> Error {
        self.tensor.error(problem)
    }

    fn release(&self) -> u64 {
        self.tensor.release();
        self.tensor.bytes().len() as u64
    }
}

/// Hugging Face's ternary layouts, packed or made on loading.
pub(super) enum BitnetPart<'a> {
    Packed(PackedTernary<'a>, f32),
    Online(OnlineTernary<'a>),
}

impl<'a> BitnetPart<'a> {
    /// Four rows in a byte, `[rows / 4, columns]`, and their scale.
    pub(super) fn packed(tensor: Tensor<'a>, scale: &Tensor<'_>, divide: bool, shape: [usize; 2]) -> Result<Self> {
        let [rows, columns] = shape;
        if rows % 4 != 0 {
            return Err(tensor.error(format_args!("{rows} rows can't be packed four to a byte")));
        }
        let packed = PackedTernary::new(tensor.expect_shape(&[rows / 4, columns])?)?;
        Ok(Self::Packed(packed, bitnet::scale(divide, scale)?))
    }

    pub(super) fn online(tensor: Tensor<'a>) -> Result<Self> {
        Ok(Self::Online(OnlineTernary::new(tensor)?))
    }

    fn tensor(&self) -> &Tensor<'a> {
        match self {
            BitnetPart::Packed(packed, _) => packed.tensor(),
            BitnetPart::Online(online) => online.tensor(),
        }
    }

    /// A row as -1, 0, 1; returns its scale.
    fn values(&self, row: usize, out: &mut [i8]) -> Result<f32> {
        match self {
            BitnetPart::Packed(packed, scale) => packed.row(row, out).map(|()| *scale),
            BitnetPart::Online(online) => online.row(row, out).map(|()| online.scale()),
        }
    }
}

impl Part for BitnetPart<'_> {
    fn format(&self) -> Format {
        Format::Ternary
    }

    fn is_ternary(&self) -> bool {
        true
    }

    fn codes(&self, row: usize, out: CodedRow<'_>) -> Result<()> {
        let CodedRow::Ternary { values, scale } = out else {
            return Err(self.tensor().error("ternary codes where others are asked for"));
        };
        *scale = self.values(row, values)?;
        Ok(())
    }

    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let mut values = vec![0i8; out.len()];
        let scale = self.values(row, &mut values)?;
        out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * f32::from(value));
        Ok(())
    }

    fn error(&self, problem: &dyn std::fmt::Display) -> Error {
        self.tensor().error(problem)
    }

    fn release(&self) -> u64 {
        self.tensor().release();
        self.tensor().bytes().len() as u64
    }
}
