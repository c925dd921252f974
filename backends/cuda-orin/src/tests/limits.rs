//! Bad requests are errors in one line.

use trine_backend::{Backend, Error, KvFormat, KvShape};

use super::conforms::device;
use crate::{CudaOrin, Options};

fn refused(error: Error, words: &[&str]) {
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)) && !text.contains('\n'), "{text}");
}

#[test]
fn what_does_not_fit_is_an_error_in_one_line() {
    let Some(options) = device() else { return };
    let mut backend = CudaOrin::open(&options).unwrap();
    refused(backend.alloc(0, 100).map(drop).unwrap_err(), &["0 x 100"]);
    refused(backend.alloc(1 << 17, 1).map(drop).unwrap_err(), &["65535"]);
    refused(backend.upload(3, &[0.0; 4]).map(drop).unwrap_err(), &["4 values", "rows of 3"]);
    let shape = KvShape { layers: 1, sequences: 1, context: 100, kv_heads: 1, head_dim: 320 };
    refused(backend.kv(shape, KvFormat::F16).map(drop).unwrap_err(), &["320", "256"]);
    let endless = KvShape { context: 1 << 31, sequences: 1 << 31, head_dim: 64, ..shape };
    refused(backend.kv(endless, KvFormat::F16).map(drop).unwrap_err(), &["counted"]);
    let large = KvShape { context: 1 << 31, sequences: 1 << 10, head_dim: 64, ..shape };
    refused(backend.kv(large, KvFormat::F16).map(drop).unwrap_err(), &["keys", "context", "MiB"]);
    refused(backend.step(&[], |_| ()).unwrap_err(), &["rows"]);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let Some(options) = device().filter(|options| !options.emulate) else { return };
    let unknown = Options { device: Some("no such device".into()), ..options };
    refused(CudaOrin::open(&unknown).err().unwrap(), &["no such device", "0 ("]);
}
