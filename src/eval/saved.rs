//! Logits in a file, so that one model's need be computed only once. `docs/eval.md` describes the format.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::Windows;
use super::distribution::{Scored, score};
use crate::{Error, Result};

/// Begins each file; the last character is the version.
const MAGIC: &[u8; 8] = b"TRINELP1";
/// Bytes of the header before the model's name.
const HEADER: usize = 64;
const LONGEST_NAME: usize = 4096;
const LARGEST_VOCABULARY: usize = 1 << 24;
/// Bytes of a row before its codes.
const ROW: usize = 12;
/// Tokens less likely than `exp(-DEEPEST)` of the likeliest are written as if they were that likely.
const DEEPEST: f64 = 32.0;
const HIGHEST_CODE: f64 = u16::MAX as f64;

/// What saved logits are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The model and its formats, for people.
    pub model: String,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tokens of the text.
    pub tokens: usize,
    /// [`hash`] of the text's token ids.
    pub hash: u64,
    /// How the text was cut up.
    pub windows: Windows,
}

impl Description {
    /// Bytes of a row.
    fn row(&self) -> usize {
        ROW + 2 * self.vocab
    }
}

/// FNV-1a of 64 bits over the ids, four bytes each, lowest first (G. Fowler, L. C. Noll, K.-P. Vo). It tells texts apart;
/// it is no protection against anybody.
pub fn hash(ids: &[u32]) -> u64 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Writes logits beside `path`, where they appear when all are there.
pub struct Writer {
    path: PathBuf,
    beside: PathBuf,
    out: Option<BufWriter<File>>,
}

impl Writer {
    /// Begins a file.
    ///
    /// # Errors
    /// It can't be written, or the model's vocabulary is larger than any that is known.
    pub fn create(path: &Path, description: &Description) -> Result<Self> {
        if description.vocab == 0 || description.vocab > LARGEST_VOCABULARY {
            return Err(Error::file(path, format_args!("{} tokens can't be saved", description.vocab)));
        }
        let beside = path.with_added_extension("incomplete");
        let file = File::create(&beside).map_err(|error| Error::file(&beside, error))?;
        let mut writer = Writer { path: path.to_owned(), beside, out: Some(BufWriter::with_capacity(1 << 20, file)) };
        writer.put(&header(description))?;
        Ok(writer)
    }

    /// Logits before `targets`, `[targets, vocab]`.
    ///
    /// # Errors
    /// They can't be written.
    pub fn write(&mut self, logits: &[f32], targets: &[u32]) -> Result<()> {
        let vocab = logits.len() / targets.len().max(1);
        let rows: Vec<Vec<u8>> =
            logits.par_chunks(vocab).zip(targets).map(|(logits, &target)| encode(logits, target)).collect();
        rows.iter().try_for_each(|row| self.put(row))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// It can't be written.
    pub fn finish(mut self) -> Result<()> {
        let done = match self.out.take() {
            Some(out) => out.into_inner().map_err(std::io::IntoInnerError::into_error).and_then(|file| file.sync_all()),
            None => Ok(()),
        };
        let named = done.and_then(|()| std::fs::rename(&self.beside, &self.path));
        named.map_err(|error| {
            let _ = std::fs::remove_file(&self.beside);
            Error::file(&self.path, error)
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.out.as_mut().map_or(Ok(()), |out| out.write_all(bytes));
        written.map_err(|error| Error::file(&self.beside, error))
    }
}

impl Drop for Writer {
    /// What is not finished is no use to anybody.
    fn drop(&mut self) {
        if self.out.take().is_some() {
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

fn header(description: &Description) -> Vec<u8> {
    let Description { model, vocab, tokens, hash, windows } = description;
    let mut end = model.len().min(LONGEST_NAME);
    while !model.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = MAGIC.to_vec();
    let wide = [*hash, *tokens as u64, windows.window as u64, windows.stride as u64, windows.skip as u64];
    wide.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    [*vocab as u32, end as u32, 0, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.extend(&model.as_bytes()[..end]);
    bytes
}

/// A row: the target's loss, the step between codes, the likeliest token, and for each token how many steps its logit is
/// below the highest.
fn encode(logits: &[f32], target: u32) -> Vec<u8> {
    let Scored { loss, top } = score(logits, target);
    let highest = f64::from(logits[top as usize]);
    let below = |logit: f32| (highest - f64::from(logit)).min(DEEPEST);
    let deepest = logits.iter().map(|&logit| below(logit)).fold(0.0, f64::max);
    let step = (deepest / HIGHEST_CODE) as f32;
    let scale = if step > 0.0 { 1.0 / f64::from(step) } else { 0.0 };
    let mut row = Vec::with_capacity(ROW + 2 * logits.len());
    row.extend((loss as f32).to_le_bytes());
    row.extend(step.to_le_bytes());
    row.extend(top.to_le_bytes());
    // The cast saturates, and takes what is no number for 0: the loss is none then, and the row refused.
    row.extend(logits.iter().flat_map(|&logit| ((below(logit) * scale).round() as u16).to_le_bytes()));
    row
}

/// Saved logits, read row by row.
pub struct SavedLogits {
    path: PathBuf,
    description: Description,
    file: BufReader<File>,
    left: usize,
    row: Vec<u8>,
}

impl SavedLogits {
    /// Opens saved logits; their header and length are checked.
    ///
    /// # Errors
    /// The file can't be read, is something else, or is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::file(path, error);
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let (description, begin) = read_header(&mut file).map_err(|problem| Error::file(path, problem))?;
        let rows = description.windows.targets(description.tokens);
        let expected = rows.checked_mul(description.row()).and_then(|bytes| bytes.checked_add(begin));
        if rows == 0 || expected.and_then(|bytes| u64::try_from(bytes).ok()) != Some(length) {
            let problem = format!("{length} bytes are not {rows} rows of {} tokens: damaged", description.vocab);
            return Err(Error::file(path, problem));
        }
        let row = vec![0; description.row()];
        Ok(SavedLogits { path: path.to_owned(), description, file, left: rows, row })
    }

    /// What they are of.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Whether they are of this text, cut up in this way, in this vocabulary.
    ///
    /// # Errors
    /// They are not, or were read already.
    pub fn check(&self, ids: &[u32], windows: &Windows, vocab: usize) -> Result<()> {
        let Description { vocab: other, tokens, hash: saved, windows: cut, .. } = &self.description;
        let problem = if *other != vocab {
            format!("logits of {other} tokens, where the model has {vocab}")
        } else if (*tokens, *saved) != (ids.len(), hash(ids)) {
            format!("logits of another text: {tokens} tokens, here {}, or other ones", ids.len())
        } else if cut != windows {
            let Windows { window, stride, skip } = cut;
            format!("the text was cut up in another way: use --window {window} --stride {stride} --skip {skip}")
        } else if self.left != windows.targets(ids.len()) {
            "some of it was read already".into()
        } else {
            return Ok(());
        };
        Err(Error::file(&self.path, problem))
    }

    /// The next rows, as logits below the highest of each, into `out`: `[rows, vocab]`. Returns what is known of them
    /// exactly.
    pub(super) fn read(&mut self, out: &mut [f32]) -> Result<Vec<Scored>> {
        let vocab = self.description.vocab;
        out.chunks_mut(vocab).map(|logits| self.next(logits)).collect()
    }

    fn next(&mut self, logits: &mut [f32]) -> Result<Scored> {
        self.file.read_exact(&mut self.row).map_err(|error| Error::file(&self.path, error))?;
        let number = self.description.windows.targets(self.description.tokens) - self.left;
        self.left = self.left.saturating_sub(1);
        decode(&self.row, logits)
            .ok_or_else(|| Error::file(&self.path, format_args!("row {number} is damaged: save the logits again")))
    }
}

/// Undoes [`encode`]; `None` for what it never writes.
fn decode(row: &[u8], logits: &mut [f32]) -> Option<Scored> {
    let (fields, codes) = row.split_at_checked(ROW)?;
    let [loss, step, top] = *fields.as_chunks::<4>().0 else { return None };
    let (loss, step, top) = (f32::from_le_bytes(loss), f32::from_le_bytes(step), u32::from_le_bytes(top));
    let largest = (DEEPEST / HIGHEST_CODE) as f32;
    if !(loss.is_finite() && loss >= 0.0 && (0.0..=largest).contains(&step)) {
        return None;
    }
    for (logit, code) in logits.iter_mut().zip(codes.as_chunks::<2>().0) {
        *logit = -step * f32::from(u16::from_le_bytes(*code));
    }
    // The likeliest token is no step below itself.
    let is_top = logits.get(top as usize).is_some_and(|&logit| logit == 0.0);
    is_top.then_some(Scored { loss: f64::from(loss), top })
}

/// The description and the bytes that it takes in the file.
fn read_header(file: &mut impl Read) -> std::result::Result<(Description, usize), String> {
    let short = |_| "too short for saved logits".to_owned();
    let mut fixed = [0; HEADER];
    file.read_exact(&mut fixed).map_err(short)?;
    let (magic, fields) = fixed.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err("no saved logits of this version: they come from `trine eval --save-logits`".into());
    }
    let size = |field: u64| usize::try_from(field).map_err(|_| format!("a size of {field} is damage"));
    let words = fields.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>();
    let [hash, tokens, window, stride, skip, sizes, 0] = words[..] else {
        return Err("reserved bytes of the header are set: of a later version".into());
    };
    let (vocab, name) = (size(sizes & 0xffff_ffff)?, size(sizes >> 32)?);
    if vocab == 0 || vocab > LARGEST_VOCABULARY || name > LONGEST_NAME {
        return Err(format!("a vocabulary of {vocab} tokens and a name of {name} bytes are damage"));
    }
    let windows = Windows { window: size(window)?, stride: size(stride)?, skip: size(skip)? };
    let tokens = size(tokens)?;
    windows.check(tokens, windows.window).map_err(|error| error.to_string())?;
    let mut text = vec![0; name];
    file.read_exact(&mut text).map_err(short)?;
    let model = String::from_utf8(text).map_err(|_| "the model's name is not UTF-8".to_owned())?;
    Ok((Description { model, vocab, tokens, hash, windows }, HEADER + name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::distribution::compare;
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // From the test vectors of the hash's authors.
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(&[u32::from_le_bytes(*b"foob")]), 0xdd12_0e79_0c25_12af);
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[0]), hash(&[0, 0]));
    }

    fn description(ids: &[u32], windows: Windows, vocab: usize) -> Description {
        Description { model: "some, weights int4-g32".into(), vocab, tokens: ids.len(), hash: hash(ids), windows }
    }

    /// Logits as a model has them, `[rows, vocab]`.
    fn logits(rows: usize, vocab: usize) -> Vec<f32> {
        (0..rows * vocab).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 * 2e-6 - 12.0).collect()
    }

    /// A file of 8 rows of 50 tokens.
    fn saved() -> (tempfile::TempDir, PathBuf, Vec<u32>, Windows) {
        let (dir, ids, windows) = (tempfile::tempdir().unwrap(), (0..9).collect::<Vec<u32>>(), Windows::from(4));
        let path = dir.path().join("logits");
        let mut writer = Writer::create(&path, &description(&ids, windows, 50)).unwrap();
        let all = logits(8, 50);
        writer.write(&all[..150], &ids[1..4]).unwrap();
        writer.write(&all[150..], &ids[4..]).unwrap();
        assert!(!path.exists(), "nothing unfinished has the name");
        writer.finish().unwrap();
        (dir, path, ids, windows)
    }

    #[test]
    fn what_was_written_is_read() {
        let (dir, path, ids, windows) = saved();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 64 + 22 + 8 * (12 + 100));
        let mut saved = SavedLogits::open(&path).unwrap();
        assert_eq!(saved.description(), &description(&ids, windows, 50));
        saved.check(&ids, &windows, 50).unwrap();
        let mut out = vec![0.0; 8 * 50];
        let mut known = saved.read(&mut out[..250]).unwrap();
        known.extend(saved.read(&mut out[250..]).unwrap());
        let all = logits(8, 50);
        for (row, (read, logits)) in out.chunks(50).zip(all.chunks(50)).enumerate() {
            let exact = score(logits, ids[row + 1]);
            assert_eq!(known[row].top, exact.top);
            assert!((known[row].loss - exact.loss).abs() < 1e-6);
            assert!(compare(read, logits, 0).2 < 1e-8);
        }
        assert!(saved.check(&ids, &windows, 50).unwrap_err().to_string().contains("read already"));
        assert!(saved.read(&mut out[..50]).is_err());
    }

    #[test]
    fn another_text_is_refused() {
        let (_dir, path, ids, windows) = saved();
        let saved = SavedLogits::open(&path).unwrap();
        let problem = |ids: &[u32], windows: Windows, vocab| saved.check(ids, &windows, vocab).unwrap_err().to_string();
        assert!(problem(&ids, windows, 51).contains("logits of 50 tokens, where the model has 51"));
        assert!(problem(&ids[1..], windows, 50).contains("another text: 9 tokens, here 8"));
        let mut other = ids.clone();
        other[3] += 1;
        assert!(problem(&other, windows, 50).contains("another text"));
        assert!(problem(&ids, Windows::from(8), 50).contains("--window 4 --stride 4 --skip 0"));
    }

    #[test]
    fn nothing_in_a_file_is_trusted() {
        let (_dir, path, ..) = saved();
        let good = std::fs::read(&path).unwrap();
        let problem = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let read = |mut saved: SavedLogits| saved.read(&mut [0.0; 8 * 50]).map(|_| ());
            SavedLogits::open(&path).and_then(read).err().map(|error| error.to_string())
        };
        assert_eq!(problem(&good), None);
        for length in [0, 7, 63, 64, 85, 86, good.len() - 1] {
            assert!(problem(&good[..length]).is_some(), "{length} bytes");
        }
        assert!(problem(&[&good[..], b"x"].concat()).unwrap().contains("damaged"));
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            problem(&bad)
        };
        // Magic, tokens, window, stride, skip, vocabulary, name and reserved bytes.
        for (at, bytes) in [
            (0, &b"GGUF"[..]),
            (16, &[255; 8]),
            (16, &[0; 8]),
            (24, &[255; 8]),
            (32, &[0; 8]),
            (40, &[255; 8]),
            (48, &[255; 4]),
            (48, &[0; 4]),
            (52, &[255; 4]),
            (56, &[1]),
            (64, &[255]),
        ] {
            assert!(with(at, bytes).is_some(), "{bytes:?} at {at}");
        }
        // Loss, step and likeliest token of the first row.
        let nan = f32::NAN.to_le_bytes();
        for (at, bytes) in [
            (0, &nan[..]),
            (0, &(-1f32).to_le_bytes()),
            (4, &nan),
            (4, &1f32.to_le_bytes()),
            (4, &(-0.1f32).to_le_bytes()),
            (8, &[255; 4]),
            (8, &50u32.to_le_bytes()),
        ] {
            let line = with(86 + at, bytes);
            assert!(line.as_ref().is_some_and(|line| line.contains("row 0 is damaged")), "{line:?}");
        }
    }

    #[test]
    fn an_interrupted_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logits");
        drop(Writer::create(&path, &description(&[1, 2, 3], Windows::from(2), 9)).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    proptest! {
        #[test]
        fn rows_lose_little(logits in prop::collection::vec(-60f32..60.0, 1..300), target in 0usize..300) {
            let target = (target % logits.len()) as u32;
            let mut out = vec![0.0; logits.len()];
            let known = decode(&encode(&logits, target), &mut out).unwrap();
            let exact = score(&logits, target);
            prop_assert_eq!(known.top, exact.top);
            prop_assert!((known.loss - exact.loss).abs() < 1e-5);
            prop_assert!(compare(&out, &logits, target).2 < 1e-6);
        }

        #[test]
        fn no_row_is_a_panic(row in prop::collection::vec(any::<u8>(), 12..60)) {
            decode(&row, &mut vec![0.0; (row.len() - 12) / 2]);
        }
    }
}
