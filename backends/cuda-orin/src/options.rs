//! What can be set when the backend is opened.

use std::fmt;
use std::str::FromStr;

use trine_backend::Error;

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
    fn names_are_read_back() {
        for (name, count) in [("o1", 1), ("o2", 2), ("o4", 4), ("o8", 8)] {
            let rows: RowsPerThread = name.parse().unwrap();
            assert_eq!((rows.count(), rows.to_string().as_str()), (count, name));
        }
        assert!("o3".parse::<RowsPerThread>().unwrap_err().to_string().contains("o1, o2, o4 or o8"));
    }
}
