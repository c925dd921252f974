//! What can be set when the backend is opened.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use trine_backend::Error;

use crate::driver::LOWEST;

/// What can be set when the backend is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The GPU to use: its number, or a part of its name; the first without it.
    pub device: Option<String>,
    /// Rows of a matrix that share the loads of activations in a product of one token; the best known without it.
    pub rows: Option<RowsPerThread>,
    /// Imitate a GPU on the CPU: for tests, where the feature `emulate` is compiled in.
    pub emulate: bool,
    /// Do without graphs, and let no launch begin before the one before it has ended: for tools that look at launches one
    /// by one.
    pub serial: bool,
    /// Compile kernels for a device that is not here, and run none.
    pub elsewhere: Option<Elsewhere>,
}

/// A device whose kernels are compiled here: see [`Options::elsewhere`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its compute capability: 87 is 8.7.
    pub capability: u32,
    /// Where the kernels go; the device finds them there by `TRINE_KERNELS`.
    pub folder: PathBuf,
}

impl Elsewhere {
    /// The device of this compute capability, as `8.7`, `87` or `sm_87`.
    ///
    /// # Errors
    /// It is none that the kernels are written for.
    pub fn new(capability: &str, folder: impl Into<PathBuf>) -> Result<Elsewhere, Error> {
        let digits: String = capability.trim_start_matches("sm_").chars().filter(|&digit| digit != '.').collect();
        let known = digits.parse().ok().filter(|number| (LOWEST..1000).contains(number));
        let capability = known.ok_or_else(|| {
            Error::Invalid(format!("'{capability}' is no compute capability from 8.0 on: Jetson Orin has 8.7"))
        })?;
        Ok(Elsewhere { capability, folder: folder.into() })
    }
}

impl Options {
    /// The default; imitating a GPU where the environment says `TRINE_CUDA_EMULATE=1`, one launch at a time where it says
    /// `TRINE_CUDA_SERIAL=1`.
    pub fn from_environment() -> Options {
        let says = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        Options { emulate: says("TRINE_CUDA_EMULATE"), serial: says("TRINE_CUDA_SERIAL"), ..Options::default() }
    }
}

/// Rows of a matrix that one thread computes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowsPerThread {
    /// 1.
    O1,
    /// 2.
    O2,
    /// 4.
    O4,
    /// 8.
    O8,
}

const NAMES: [(&str, RowsPerThread); 4] =
    [("o1", RowsPerThread::O1), ("o2", RowsPerThread::O2), ("o4", RowsPerThread::O4), ("o8", RowsPerThread::O8)];

impl RowsPerThread {
    /// The number.
    pub fn count(self) -> u32 {
        1 << self as u32
    }
}

impl fmt::Display for RowsPerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(NAMES[*self as usize].0)
    }
}

impl FromStr for RowsPerThread {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        NAMES.iter().find(|(name, _)| *name == text).map(|(_, rows)| *rows).ok_or_else(|| {
            Error::Invalid(format!("'{text}' is no kernel of cuda-orin: it is o1, o2, o4 or o8, its rows per thread"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_elsewhere_has_a_capability() {
        for text in ["87", "8.7", "sm_87"] {
            assert_eq!(Elsewhere::new(text, "x").unwrap().capability, 87);
        }
        for text in ["", "orin", "7.5", "-87", "99999999999"] {
            assert!(Elsewhere::new(text, "x").unwrap_err().to_string().contains("8.7"), "{text}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for (name, count) in [("o1", 1), ("o2", 2), ("o4", 4), ("o8", 8)] {
            let rows: RowsPerThread = name.parse().unwrap();
            assert_eq!((rows.count(), rows.to_string().as_str()), (count, name));
        }
        assert!("o3".parse::<RowsPerThread>().unwrap_err().to_string().contains("o1, o2, o4 or o8"));
    }
}
