//! Bytes as a GGUF file: opens them, makes a configuration and a vocabulary of the metadata, and reads every tensor.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trine::formats::gguf::{GgufFile, GgufTensors};

/// Rows that are read of each matrix, and columns that a row may have: a tensor without rows may claim any number.
const MOST_ROWS: usize = 16;
const MOST_COLUMNS: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let file = match GgufFile::parse("fuzz".as_ref(), data.to_vec().into()) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().contains('\n')),
    };
    if let Err(error) = file.metadata().tokenizer_files() {
        assert!(!error.to_string().contains('\n'));
    }
    let Ok((metadata, tensors)) = file.split() else { return };
    if let Err(error) = metadata.config_json(&tensors) {
        assert!(!error.to_string().contains('\n'));
    }
    tensors.rope_factors().ok();
    let names: Vec<_> = tensors.names().map(str::to_owned).collect();
    for name in names {
        read(&tensors, &name);
    }
});

fn read(tensors: &GgufTensors, name: &str) {
    let shape = tensors.shape(name).expect("a listed tensor is there").to_vec();
    let (_, bytes) = tensors.stored(name).expect("a listed tensor is there");
    match (shape.as_slice(), name.strip_suffix(".weight")) {
        (&[rows, columns], Some(part)) if columns <= MOST_COLUMNS => {
            let Ok(part) = tensors.part(part, [rows, columns]) else { return };
            let mut row = vec![0.0; columns];
            for at in 0..rows.min(MOST_ROWS) {
                if part.floats(at, &mut row).is_ok() {
                    assert!(row.iter().all(|value| value.is_finite()));
                }
            }
            assert_eq!(part.release(), bytes);
        }
        (&[length], _) => {
            tensors.vector(name, length).ok();
        }
        _ => {}
    }
}
