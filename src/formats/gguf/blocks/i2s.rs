//! bitnet.cpp's I2_S: two bits a weight, t + 1, and one f32 scale behind the whole tensor.
//!
//! Two packings go by the same type number and have the same size, and nothing in the file tells them apart. The classic
//! one, which published files have, cuts the weights into blocks of 128. Newer quantisers of bitnet.cpp for x86 put four
//! rows into a byte where they are built without `ACT_PARALLEL`. So [`Packing::of`] asks the weights: what an input is
//! worth to a model shows in how many zeros its column has, and the wrong packing mixes four columns. (Quantisers for
//! ARM write blocks of 64. The columns of a wrong block are only in another order, so that nothing tells them apart; no
//! published file is known to be so.)

use super::Problem;

/// Columns that share a row of bytes in the classic packing.
const COLUMNS: usize = 128;
/// Rows that share a byte in the other one.
const ROWS: usize = 4;
/// Tensors and rows of each that [`Packing::of`] looks at.
const TENSORS: usize = 8;
const MOST_ROWS: usize = 512;
/// Standard deviations by which four rows must be likelier than blocks. Of weights without structure the difference is
/// about 1.4; of a trained model of 20 M parameters it is 20.
const MARGIN: f64 = 8.0;

/// Where the codes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) enum Packing {
    /// Blocks of 128 through the whole tensor: byte `j` of a block's 32 holds weights `j`, `j + 32`, `j + 64`, `j + 96`
    /// from its highest bits down.
    #[default]
    Blocks,
    /// Byte `[r, c]` holds the rows `4 r` to `4 r + 3` of column `c` from its highest bits down.
    FourRows,
}

impl Packing {
    /// The packing of a file with these I2_S tensors, of bytes and shape. Classic where the weights do not say.
    pub(in super::super) fn of<'a>(tensors: impl Iterator<Item = (&'a [u8], [usize; 2])>) -> Self {
        let (mut blocks, mut four_rows, mut count) = (0.0, 0.0, 0.0f64);
        for (bytes, [rows, columns]) in tensors.filter(|(_, [rows, _])| rows.is_multiple_of(ROWS)).take(TENSORS) {
            let spread = |packing| I2s::new(bytes, [rows, columns], packing).ok().and_then(|i2s| i2s.spread());
            if let (Some(a), Some(b)) = (spread(Packing::Blocks), spread(Packing::FourRows)) {
                (blocks, four_rows, count) = (blocks + a, four_rows + b, count + 1.0);
            }
        }
        match (four_rows - blocks) / count.sqrt() > MARGIN {
            true => Packing::FourRows,
            false => Packing::Blocks,
        }
    }
}

/// The codes of a tensor, and their scale.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct I2s<'a> {
    codes: &'a [u8],
    rows: usize,
    columns: usize,
    packing: Packing,
    pub(in super::super) scale: f32,
}

impl<'a> I2s<'a> {
    /// Reads a tensor of `[rows, columns]`.
    pub(in super::super) fn new(bytes: &'a [u8], [rows, columns]: [usize; 2], packing: Packing) -> Problem<Self> {
        let elements = rows.checked_mul(columns).ok_or("its size overflows")?;
        match packing {
            Packing::Blocks if !elements.is_multiple_of(COLUMNS) => {
                return Err(format!("{elements} weights are no whole blocks of I2_S, which have {COLUMNS}"));
            }
            Packing::FourRows if !rows.is_multiple_of(ROWS) => {
                return Err(format!("{rows} rows are not packed four to a byte"));
            }
            _ => {}
        }
        let short = || "too few bytes for I2_S".to_owned();
        let (codes, tail) = bytes.split_at_checked(elements / 4).ok_or_else(short)?;
        let scale = f32::from_le_bytes(*tail.first_chunk().ok_or_else(short)?);
        if !scale.is_finite() {
            return Err(format!("the scale {scale}: the weights are damaged"));
        }
        Ok(Self { codes, rows, columns, packing, scale })
    }

    /// The values -1, 0, 1 of a row.
    pub(in super::super) fn row(&self, row: usize, out: &mut [i8]) -> Problem<()> {
        let start = row * self.columns;
        for (column, out) in out.iter_mut().enumerate() {
            let (byte, place) = match self.packing {
                Packing::Blocks => {
                    let (block, at) = ((start + column) / COLUMNS, (start + column) % COLUMNS);
                    (block * 32 + at % 32, at / 32)
                }
                Packing::FourRows => (row / ROWS * self.columns + column, row % ROWS),
            };
            let byte = self.codes.get(byte).ok_or("there is no such row")?;
            let code = byte >> (6 - 2 * place) & 3;
            if code == 3 {
                return Err(format!("invalid ternary code 3 at weight {}", start + column));
            }
            *out = code as i8 - 1;
        }
        Ok(())
    }

    /// How far the columns' numbers of zeros are from chance, in standard deviations of χ²; `None` without zeros, or of
    /// a tensor that can't be read.
    fn spread(&self) -> Option<f64> {
        let rows = self.rows.min(MOST_ROWS);
        let (mut values, mut zeros) = (vec![0; self.columns], vec![0u32; self.columns]);
        for row in 0..rows {
            self.row(row, &mut values).ok()?;
            zeros.iter_mut().zip(&values).for_each(|(zeros, value)| *zeros += u32::from(*value == 0));
        }
        let (rows, columns) = (rows as f64, self.columns as f64);
        let share = zeros.iter().map(|&zeros| f64::from(zeros)).sum::<f64>() / (rows * columns);
        let variance = rows * share * (1.0 - share);
        let square: f64 = zeros.iter().map(|&zeros| (f64::from(zeros) - rows * share).powi(2)).sum();
        (variance > 0.0).then(|| (square / variance - columns) / (2.0 * columns).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ModelFiles;
    use crate::formats::Quantization;

    fn pack(values: &[i8], columns: usize, packing: Packing) -> Vec<u8> {
        let code = |at: usize| (values[at] + 1) as u8;
        let bytes = (0..values.len() / 4).map(|byte| {
            let places = match packing {
                Packing::Blocks => [0, 1, 2, 3].map(|place| byte / 32 * 128 + byte % 32 + 32 * place),
                Packing::FourRows => [0, 1, 2, 3].map(|row| (byte / columns * 4 + row) * columns + byte % columns),
            };
            places.into_iter().fold(0, |packed, place| packed << 2 | code(place))
        });
        bytes.chain(0.5f32.to_le_bytes()).chain([0; 28]).collect()
    }

    /// The matrices of the demo model's first layer, packed.
    fn demo(packing: Packing) -> Vec<(Vec<u8>, [usize; 2])> {
        let files = ModelFiles::demo().unwrap();
        let matrices = [("self_attn.q_proj", 384, 384), ("self_attn.k_proj", 128, 384), ("mlp.down_proj", 384, 1280)];
        let read = |(name, rows, columns): (&str, usize, usize)| {
            let name = format!("model.layers.0.{name}");
            let stored = Quantization::Bitnet { divide: false, online: false };
            let part = files.checkpoint.part(&name, [rows, columns], stored).unwrap();
            let mut values = vec![0.0; rows * columns];
            values.chunks_mut(columns).enumerate().for_each(|(row, out)| part.floats(row, out).unwrap());
            let values: Vec<i8> = values.iter().map(|value| value.partial_cmp(&0.0).unwrap() as i8).collect();
            (pack(&values, columns, packing), [rows, columns])
        };
        matrices.into_iter().map(read).collect()
    }

    #[test]
    fn a_trained_model_tells_its_packing() {
        for packing in [Packing::Blocks, Packing::FourRows] {
            let tensors = demo(packing);
            let found = Packing::of(tensors.iter().map(|(bytes, shape)| (bytes.as_slice(), *shape)));
            assert_eq!(found, packing);
        }
    }

    #[test]
    fn both_packings_give_the_rows_back() {
        let (rows, columns) = (8, 128);
        let values: Vec<i8> = (0..rows * columns).map(|i| (i * 7 + i / 5) as i8 % 3).map(|v| v.clamp(-1, 1)).collect();
        for packing in [Packing::Blocks, Packing::FourRows] {
            let bytes = pack(&values, columns, packing);
            let i2s = I2s::new(&bytes, [rows, columns], packing).unwrap();
            let mut out = vec![0; columns];
            for (row, expected) in values.chunks(columns).enumerate() {
                i2s.row(row, &mut out).unwrap();
                assert_eq!(out, expected);
            }
            assert!(i2s.row(rows, &mut out).is_err());
        }
        assert!(I2s::new(&[0; 1000], [6, 128], Packing::FourRows).unwrap_err().contains("four to a byte"));
    }

    #[test]
    fn weights_without_structure_are_classic() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) % 3) as i8 - 1
        };
        let values: Vec<i8> = (0..64 * 256).map(|_| next()).collect();
        for packing in [Packing::Blocks, Packing::FourRows] {
            let bytes = pack(&values, 256, packing);
            assert_eq!(Packing::of(std::iter::once((bytes.as_slice(), [64, 256]))), Packing::Blocks);
        }
        assert_eq!(Packing::of(std::iter::empty()), Packing::Blocks);
        // Neither bytes that are too few nor weights that are all alike decide anything.
        assert_eq!(Packing::of([(&[0u8; 9][..], [4, 128]), (&[0u8; 160][..], [4, 128])].into_iter()), Packing::Blocks);
    }
}
