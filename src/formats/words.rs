//! Hugging Face's INT4 and INT8 checkpoints: AWQ and GPTQ, whose codes lie in 32-bit words.
//!
//! Both keep a matrix transposed, `[inputs, outputs]`, with an f16 scale and a zero point, of as many bits as a code, for
//! each group of inputs: `w = s · (u - z)`. The layouts are those of AutoAWQ's "GEMM" version (the eight outputs of a word
//! in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest nibble) and of AutoGPTQ (eight inputs in a word, or four of 8 bits,
//! in order; zero points stored less one except in `gptq_v2`; `g_idx` gives each input's group).

use half::f16;
use trine_backend::{CodedRow, Format, Group, ZeroKind, ZeroRow};

use super::checkpoint::Checkpoint;
use super::part::{Part, PartInfo};
use super::tensor::{Dtype, Tensor};
use crate::{Error, Result};

/// AWQ's codes in a word.
const AWQ_CODES: usize = 8;
/// The zero point of 8-bit codes whose quantisation was symmetric.
const MIDDLE: u16 = 128;

/// Whose layout it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// AutoAWQ's GEMM.
    Awq,
    /// AutoGPTQ's.
    Gptq {
        /// Bits of a code.
        bits: GptqBits,
        /// Zero points are stored less one, as before `gptq_v2`.
        less_one: bool,
    },
}

/// How wide GPTQ's codes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GptqBits {
    /// u in 0..=15.
    Four,
    /// u in 0..=255.
    Eight,
}

impl Packing {
    /// Codes in a word.
    fn codes(self) -> usize {
        match self {
            Packing::Awq => AWQ_CODES,
            Packing::Gptq { bits: GptqBits::Four, .. } => 8,
            Packing::Gptq { bits: GptqBits::Eight, .. } => 4,
        }
    }
}

/// How wide the groups are: `None` is one for the whole row.
pub type GroupSize = Option<usize>;

/// Whether groups of `size` inputs can be kept: ours are smaller or as large, and divide them.
pub fn is_group_size(size: usize) -> bool {
    size > 0 && size.is_multiple_of(32)
}

/// Our group that holds theirs, whose scales may repeat.
fn group(size: GroupSize) -> Group {
    match size {
        None => Group::Row,
        Some(size) if size.is_multiple_of(128) => Group::G128,
        Some(size) if size.is_multiple_of(64) => Group::G64,
        Some(_) => Group::G32,
    }
}

/// A matrix of words, open for reading.
pub(super) struct WordsPart<'a> {
    packing: Packing,
    words: Tensor<'a>,
    zeros: Tensor<'a>,
    scales: Tensor<'a>,
    outputs: usize,
    /// Each input's group.
    groups: Vec<usize>,
    format: Format,
    /// Whether `format` keeps the codes.
    exact: bool,
}

impl<'a> WordsPart<'a> {
    /// Opens the matrix called `name`, which must have `shape`, outputs and inputs.
    ///
    /// # Errors
    /// A tensor is missing or has another shape or dtype.
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        name: &str,
        [outputs, inputs]: [usize; 2],
        packing: Packing,
        size: GroupSize,
    ) -> Result<Self> {
        let tensor = |tail: &str, shape: &[usize], wanted: &[Dtype]| -> Result<Tensor<'a>> {
            let tensor = checkpoint.tensor_of_shape(&format!("{name}.{tail}"), shape)?;
            match wanted.contains(&tensor.dtype()) {
                true => Ok(tensor),
                false => Err(tensor.error(format_args!("dtype {} where {} is needed", tensor.dtype(), wanted[0]))),
            }
        };
        let words_name = format!("{name}.qweight");
        let codes = packing.codes();
        if outputs % codes != 0 || (packing != Packing::Awq && inputs % codes != 0) {
            return Err(checkpoint.error(&words_name, format_args!("{outputs} x {inputs} is not packed by {codes}")));
        }
        let width = size.unwrap_or(inputs);
        let count = inputs.div_ceil(width);
        let shape = match packing {
            Packing::Awq => [inputs, outputs / codes],
            Packing::Gptq { .. } => [inputs / codes, outputs],
        };
        let words = tensor("qweight", &shape, &[Dtype::I32, Dtype::U32])?;
        let zeros = tensor("qzeros", &[count, outputs / codes], &[Dtype::I32, Dtype::U32])?;
        let scales = tensor("scales", &[count, outputs], &[Dtype::F16, Dtype::BF16, Dtype::F32])?;
        let groups = match packing {
            Packing::Gptq { .. } if checkpoint.contains(&format!("{name}.g_idx")) => {
                let index = tensor("g_idx", &[inputs], &[Dtype::I32])?;
                let groups: Vec<usize> = (0..inputs).map(|input| word(&index, input) as usize).collect();
                if let Some(input) = groups.iter().position(|&group| group >= count) {
                    return Err(index.error(format_args!("input {input} is in group {} of {count}", groups[input])));
                }
                groups
            }
            _ => (0..inputs).map(|input| input / width).collect(),
        };
        let in_order = groups.iter().enumerate().all(|(input, &group)| group == input / width);
        let format = Format::Int8 { group: Group::G32 };
        let mut part = WordsPart { packing, words, zeros, scales, outputs, groups, format, exact: false };
        // Inputs that were sorted for quantising (desc_act) leave no two neighbours in one group: no group of ours fits.
        if in_order && codes == 8 {
            (part.format, part.exact) = (Format::Int4 { group: group(size), zero: ZeroKind::Point }, true);
        } else if in_order {
            part.exact = (0..count).all(|group| (0..outputs).all(|output| part.zero(output, group) == MIDDLE));
        }
        Ok(part)
    }

    /// What the tensors' headers, and `g_idx`, say about the matrix called `name`.
    ///
    /// # Errors
    /// As [`WordsPart::new`].
    pub(super) fn info(checkpoint: &'a Checkpoint, name: &str, packing: Packing, size: GroupSize) -> Result<PartInfo> {
        let words = checkpoint.tensor(&format!("{name}.qweight"))?;
        let (a, b) = words.matrix()?;
        let times = |extent: usize| extent.checked_mul(packing.codes()).ok_or_else(|| words.error("too large"));
        let shape = match packing {
            Packing::Awq => [times(b)?, a],
            Packing::Gptq { .. } => [b, times(a)?],
        };
        let Self { format, exact, .. } = Self::new(checkpoint, name, shape, packing, size)?;
        let stored = match packing {
            Packing::Awq => "AWQ",
            Packing::Gptq { .. } => "GPTQ",
        };
        Ok(PartInfo { tensor: words.name().to_owned(), format, stored: stored.to_owned(), exact })
    }

    fn code(&self, output: usize, input: usize) -> u8 {
        match self.packing {
            Packing::Awq => awq_nibble(&self.words, input * (self.outputs / AWQ_CODES), output),
            Packing::Gptq { bits, .. } => {
                let codes = self.packing.codes();
                code(bits, word(&self.words, input / codes * self.outputs + output), input % codes)
            }
        }
    }

    fn zero(&self, output: usize, group: usize) -> u16 {
        let codes = self.packing.codes();
        let first = group * (self.outputs / codes);
        match self.packing {
            Packing::Awq => awq_nibble(&self.zeros, first, output).into(),
            Packing::Gptq { bits, less_one } => {
                let stored = code(bits, word(&self.zeros, first + output / codes), output % codes);
                u16::from(stored) + u16::from(less_one)
            }
        }
    }

    /// Zero point and scale of every group of an output.
    fn grid(&self, output: usize) -> Result<Vec<(u16, f16)>> {
        let count = self.scales.shape()[0];
        let scale = |group: usize| {
            let scale = scale(&self.scales, group * self.outputs + output);
            match scale.is_finite() {
                true => Ok(scale),
                false => {
                    let problem = format_args!("{scale} at group {group}, output {output}: the file is damaged");
                    Err(self.scales.error(problem))
                }
            }
        };
        (0..count).map(|group| Ok((self.zero(output, group), scale(group)?))).collect()
    }

    fn check_row(&self, row: usize) -> Result<()> {
        if row < self.outputs {
            return Ok(());
        }
        Err(self.words.error(format_args!("row {row} of {}", self.outputs)))
    }
}

impl Part for WordsPart<'_> {
    fn format(&self) -> Format {
        self.format
    }

    fn codes(&self, row: usize, out: CodedRow<'_>) -> Result<()> {
        self.check_row(row)?;
        let inputs = self.groups.len();
        match (self.format, out) {
            (Format::Int4 { group, .. }, CodedRow::Int4 { codes, scales, zero: ZeroRow::Point(points) }) => {
                codes.iter_mut().enumerate().for_each(|(input, code)| *code = self.code(row, input));
                let grid = self.grid(row)?;
                let width = group.columns(inputs);
                for (index, (scale, point)) in scales.iter_mut().zip(points).enumerate() {
                    let (zero, of_group) = grid[self.groups[index * width]];
                    // At most 16.
                    (*point, *scale) = (zero as u8, of_group);
                }
                Ok(())
            }
            (Format::Int8 { group }, CodedRow::Int8 { codes, scales }) if self.exact => {
                // Code -128, which ours do not have, becomes -127.
                let signed = |input| (i16::from(self.code(row, input)) - MIDDLE as i16).max(-127) as i8;
                codes.iter_mut().enumerate().for_each(|(input, code)| *code = signed(input));
                let grid = self.grid(row)?;
                let width = group.columns(inputs);
                for (index, scale) in scales.iter_mut().enumerate() {
                    *scale = grid[self.groups[index * width]].1;
                }
                Ok(())
            }
            (Format::Int8 { group }, out) => {
                let mut values = vec![0.0; inputs];
                self.floats(row, &mut values)?;
                out.quantize(group, &values).map_err(|problem| self.words.error(problem))
            }
            _ => Err(self.words.error("int4 codes where others are asked for")),
        }
    }

    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.check_row(row)?;
        let grid = self.grid(row)?;
        for (input, (out, &group)) in out.iter_mut().zip(&self.groups).enumerate() {
            let (zero, scale) = grid[group];
            *out = scale.to_f32() * (f32::from(self.code(row, input)) - f32::from(zero));
        }
        Ok(())
    }

    fn error(&self, problem: &dyn std::fmt::Display) -> Error {
        self.words.error(problem)
    }

    fn release(&self) -> u64 {
        let tensors = [&self.words, &self.zeros, &self.scales];
        tensors.into_iter().for_each(|tensor| tensor.release());
        tensors.into_iter().map(|tensor| tensor.bytes().len() as u64).sum()
    }
}

/// The 32-bit word at `index`, which lies inside the tensor by its shape.
fn word(tensor: &Tensor<'_>, index: usize) -> u32 {
    let bytes = &tensor.bytes()[4 * index..][..4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn nibble(word: u32, place: usize) -> u8 {
    (word >> (4 * place) & 15) as u8
}

fn code(bits: GptqBits, word: u32, place: usize) -> u8 {
    match bits {
        GptqBits::Four => nibble(word, place),
        GptqBits::Eight => word.to_le_bytes()[place],
    }
}

/// Output `output` of the words that begin at `first`.
fn awq_nibble(tensor: &Tensor<'_>, first: usize, output: usize) -> u8 {
    // Where the word's outputs 0 to 7 are.
    const PLACES: [usize; AWQ_CODES] = [0, 4, 1, 5, 2, 6, 3, 7];
    nibble(word(tensor, first + output / AWQ_CODES), PLACES[output % AWQ_CODES])
}

fn scale(tensor: &Tensor<'_>, index: usize) -> f16 {
    let bytes = tensor.bytes();
    match tensor.dtype() {
        Dtype::F32 => f16::from_f32(f32::from_bits(word(tensor, index))),
        dtype => {
            let bits = u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
            match dtype {
                Dtype::BF16 => f16::from_f32(half::bf16::from_bits(bits).to_f32()),
                _ => f16::from_bits(bits),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use trine_backend::{HostMatrix, RowBuffer};

    use super::super::test_files::{Builder, fixture};
    use super::*;

    const AWQ: Packing = Packing::Awq;
    const GPTQ: Packing = Packing::Gptq { bits: GptqBits::Four, less_one: true };
    const GPTQ8: Packing = Packing::Gptq { bits: GptqBits::Eight, less_one: true };

    /// Every matrix of a fixture as floats and as codes, against the weights that its maker had.
    fn check(folder: &str, packing: Packing, exact: bool) {
        let dir = fixture("words").join(folder);
        let open = |name: &str| Checkpoint::open(Path::new(&dir).join(name)).unwrap();
        let (packed, dense) = (open("model.safetensors"), open("dense.safetensors"));
        let mut matrices = 0;
        for name in packed.names().filter_map(|name| name.strip_suffix(".qweight")) {
            let expected = dense.tensor(&format!("{name}.weight")).unwrap();
            let (rows, columns) = expected.matrix().unwrap();
            let part = WordsPart::new(&packed, name, [rows, columns], packing, Some(32)).unwrap();
            let info = WordsPart::info(&packed, name, packing, Some(32)).unwrap();
            assert_eq!((info.format, info.exact), (part.format(), exact));
            let host = HostMatrix::coded(rows, columns, part.format(), |row, out| part.codes(row, out)).unwrap();
            let (mut wanted, mut found) = (vec![0.0; columns], vec![0.0; columns]);
            for row in 0..rows {
                expected.row_f32(row, &mut wanted).unwrap();
                part.floats(row, &mut found).unwrap();
                assert_eq!(found, wanted, "{name} row {row}");
                host.dequantize_row(row, &mut found);
                if exact {
                    assert_eq!(found, wanted, "{name} row {row}");
                } else {
                    // Quantised anew to 8 bits.
                    let largest = wanted.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                    assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= largest / 250.0));
                }
            }
            matrices += 1;
        }
        assert_eq!(matrices, 7);
    }

    #[test]
    fn awq_and_gptq_codes_are_kept() {
        check("awq", AWQ, true);
        check("gptq", GPTQ, true);
    }

    #[test]
    fn sorted_inputs_are_put_back_and_rounded_to_eight_bits() {
        check("gptq-sorted", Packing::Gptq { bits: GptqBits::Four, less_one: false }, false);
    }

    /// GPTQ's tensors of 8 bits, 4 outputs and 64 inputs in two groups, with this zero point; code `u` of input `i` and
    /// output `o` is `4 i + o`.
    fn gptq8(zero: u8) -> Checkpoint {
        let words: Vec<u8> = (0..16u8)
            .flat_map(|four| (0..4u8).flat_map(move |output| (0..4).map(move |i| (4 * four + i) * 4 + output)))
            .collect();
        let scales: Vec<u8> = (0..8).flat_map(|i| f16::from_f32(1.0 / f32::from(i + 1u8)).to_le_bytes()).collect();
        let builder = Builder::default()
            .tensor("m.qweight", "I32", &[16, 4], &words)
            .tensor("m.qzeros", "I32", &[2, 1], &[zero - 1; 8])
            .tensor("m.scales", "F16", &[2, 4], &scales);
        Checkpoint::from_bytes("test", builder.build()).unwrap()
    }

    #[test]
    fn eight_bits_are_kept_where_zero_is_in_the_middle() {
        for (zero, exact) in [(128, true), (120, false)] {
            let checkpoint = gptq8(zero);
            let info = WordsPart::info(&checkpoint, "m", GPTQ8, Some(32)).unwrap();
            assert_eq!((info.format, info.exact), (Format::Int8 { group: Group::G32 }, exact));
            let part = WordsPart::new(&checkpoint, "m", [4, 64], GPTQ8, Some(32)).unwrap();
            let host = HostMatrix::coded(4, 64, part.format(), |row, out| part.codes(row, out)).unwrap();
            let (mut floats, mut coded) = (vec![0.0; 64], vec![0.0; 64]);
            for row in 0..4 {
                part.floats(row, &mut floats).unwrap();
                host.dequantize_row(row, &mut coded);
                for (input, (float, coded)) in floats.iter().zip(&coded).enumerate() {
                    let scale = f16::from_f32(1.0 / (input / 32 * 4 + row + 1) as f32).to_f32();
                    let expected = scale * ((4 * input + row) as f32 - f32::from(zero));
                    assert_eq!(*float, expected);
                    // Code 0 of output 0 is the -128 that ours do not have.
                    let bound = if !exact || (input, row) == (0, 0) { scale } else { 0.0 };
                    assert!((coded - expected).abs() <= bound, "{coded} for {expected}");
                }
            }
        }
    }

    /// AWQ's tensors of 8 outputs and 32 inputs, one of them changed.
    fn awq(change: &str) -> Checkpoint {
        let mut builder = Builder::default();
        let words = if change == "qweight" { [31, 1] } else { [32, 1] };
        builder = builder.tensor("m.qweight", "I32", &words, &vec![0x21; 4 * words[0]]);
        let (dtype, zeros) = if change == "qzeros" { ("U8", vec![0; 1]) } else { ("I32", vec![0x33; 4]) };
        builder = builder.tensor("m.qzeros", dtype, &[1, 1], &zeros);
        let mut scales = [f16::ONE; 8];
        if change == "scales" {
            scales[3] = f16::NAN;
        }
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        if change != "missing" {
            builder = builder.tensor("m.scales", "F16", &[1, 8], &bytes);
        }
        Checkpoint::from_bytes("test", builder.build()).unwrap()
    }

    #[test]
    fn damaged_tensors_are_named() {
        let problem = |change: &str| {
            let checkpoint = awq(change);
            let mut buffer = RowBuffer::new(Format::Int4 { group: Group::G32, zero: ZeroKind::Point }, 32).unwrap();
            let read = WordsPart::new(&checkpoint, "m", [8, 32], AWQ, Some(32))
                .and_then(|part| (0..8).try_for_each(|row| part.codes(row, buffer.row())));
            read.map_err(|error| error.to_string())
        };
        assert_eq!(problem(""), Ok(()));
        let tensor = |name: &str, text: &str| Err(format!("test: tensor \"m.{name}\": {text}"));
        assert_eq!(problem("qweight"), tensor("qweight", "shape [31, 1] where [32, 1] is expected"));
        assert_eq!(problem("qzeros"), tensor("qzeros", "dtype U8 where I32 is needed"));
        assert_eq!(problem("scales"), tensor("scales", "NaN at group 0, output 3: the file is damaged"));
        assert_eq!(problem("missing"), Err("test: tensor \"m.scales\" is missing".to_owned()));
        let checkpoint = awq("");
        let odd = WordsPart::new(&checkpoint, "m", [7, 32], AWQ, None).err().unwrap().to_string();
        assert_eq!(odd, "test: tensor \"m.qweight\": 7 x 32 is not packed by 8");
        let part = WordsPart::new(&checkpoint, "m", [8, 32], AWQ, None).unwrap();
        assert!(part.floats(8, &mut [0.0; 32]).unwrap_err().to_string().ends_with("row 8 of 8"));
    }

    #[test]
    fn an_input_of_a_group_that_is_not_there_is_named() {
        let index: Vec<u8> = (0..32).flat_map(|input| (if input == 5 { -1i32 } else { 0 }).to_le_bytes()).collect();
        let ones: Vec<u8> = [f16::ONE; 8].iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let builder = Builder::default()
            .tensor("m.qweight", "I32", &[4, 8], &[0; 128])
            .tensor("m.qzeros", "I32", &[1, 1], &[0; 4])
            .tensor("m.scales", "F16", &[1, 8], &ones)
            .tensor("m.g_idx", "I32", &[32], &index);
        let checkpoint = Checkpoint::from_bytes("test", builder.build()).unwrap();
        let problem = WordsPart::new(&checkpoint, "m", [8, 32], GPTQ, None).err().unwrap().to_string();
        assert_eq!(problem, "test: tensor \"m.g_idx\": input 5 is in group 4294967295 of 1");
    }

    #[test]
    fn larger_groups_become_ours_with_repeated_scales() {
        assert_eq!(
            [32, 64, 96, 128, 192, 256].map(|size| group(Some(size))),
            [Group::G32, Group::G64, Group::G32, Group::G128, Group::G64, Group::G128]
        );
        assert_eq!(group(None), Group::Row);
        assert!(is_group_size(32) && !is_group_size(0) && !is_group_size(48));
    }
}
