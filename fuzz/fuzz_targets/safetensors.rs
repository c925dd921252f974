//! Bytes as a safetensors file: opens them and reads every tensor in every way that there is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trine::formats::{Checkpoint, OnlineTernary, PackedTernary, Tensor, bitnet, check_finite};

/// A matrix without columns may have any number of rows in a small file.
const MOST_ROWS: usize = 64;

fuzz_target!(|data: &[u8]| {
    let checkpoint = match Checkpoint::from_bytes("fuzz", data.to_vec()) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert!(!error.to_string().contains('\n')),
    };
    assert!(checkpoint.total_bytes() <= data.len() as u64);
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).expect("a listed tensor is there");
        read(&tensor);
        checkpoint.release(&tensor);
    }
});

fn read(tensor: &Tensor<'_>) {
    if let Ok(values) = tensor.to_f32() {
        assert_eq!(values.len(), tensor.elements());
        check_finite(&values, tensor, 0).ok();
    }
    bitnet::scale(true, tensor).ok();
    if let Ok((rows, cols)) = tensor.matrix() {
        // Columns of a tensor without rows are only a number.
        let mut row = vec![0.0; if rows == 0 { 0 } else { cols }];
        for i in 0..rows.min(MOST_ROWS) {
            tensor.row_f32(i, &mut row).ok();
        }
    }
    if let Ok(packed) = PackedTernary::new(*tensor) {
        let mut row = vec![0; if packed.rows() == 0 { 0 } else { packed.cols() }];
        for i in (0..packed.rows().min(MOST_ROWS)).chain(packed.rows().checked_sub(1)) {
            if packed.row(i, &mut row).is_ok() {
                assert!(row.iter().all(|t| (-1..=1).contains(t)));
            }
        }
    }
    if let Ok(online) = OnlineTernary::new(*tensor) {
        let mut row = vec![0; online.cols()];
        for i in 0..online.rows().min(MOST_ROWS) {
            online.row(i, &mut row).expect("the matrix was read once");
            assert!(row.iter().all(|t| (-1..=1).contains(t)));
        }
    }
}
