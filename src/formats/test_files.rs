//! Hand-built safetensors bytes for tests.

use std::fmt::Write;
use std::path::PathBuf;

/// Builds a file tensor by tensor, in the order in which they are given.
#[derive(Default)]
pub(crate) struct Builder {
    header: String,
    data: Vec<u8>,
}

impl Builder {
    pub(crate) fn tensor(mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) -> Self {
        let (start, end) = (self.data.len(), self.data.len() + bytes.len());
        let comma = if self.header.is_empty() { "" } else { "," };
        write!(
            self.header,
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        )
        .unwrap();
        self.data.extend(bytes);
        self
    }

    pub(crate) fn f32(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.tensor(name, "F32", shape, &bytes)
    }

    pub(crate) fn bf16(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
        self.tensor(name, "BF16", shape, &bytes)
    }

    pub(crate) fn build(self) -> Vec<u8> {
        file(&format!("{{{}}}", self.header), &self.data)
    }
}

/// A file of this header, sound or not, and these bytes.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let length = header.len() as u64;
    [&length.to_le_bytes(), header.as_bytes(), data].concat()
}

/// A file or directory that the project is tested with.
pub(crate) fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// Every fixture directory.
pub(crate) const FIXTURES: [&str; 6] =
    ["tiny-bitnet", "tiny-bitnet-online", "tiny-llama-b158", "tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3"];
