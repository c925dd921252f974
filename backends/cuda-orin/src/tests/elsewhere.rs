//! Kernels for a device that is not here.

use half::f16;
use trine_backend::{Backend, Codes, Group, HostMatrix, Int4, Row, Zero};

use crate::{CudaOrin, Elsewhere, Options};

/// Runs where there is NVRTC, and says so where there is none.
#[test]
fn what_steps_ask_for_is_compiled_into_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = Some(Elsewhere::new("8.7", folder.path().join("kernels")).unwrap());
    let mut b = match CudaOrin::open(&Options { elsewhere, ..Options::default() }) {
        Ok(b) => b,
        Err(why) => {
            assert!(why.to_string().contains("NVRTC"), "{why}");
            println!("skipped: {why}");
            return;
        }
    };
    assert!(b.info().name.contains("8.7"));
    let codes = Codes::Int4(Int4::new(Group::G32, vec![0x88; 64 * 32], vec![f16::ONE; 64 * 2], Zero::Symmetric));
    let weight = b.prepare(HostMatrix::new(64, 64, codes).unwrap()).unwrap();
    let (x, mut out) = (b.alloc(16, 64).unwrap(), b.alloc(16, 64).unwrap());
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(folder.path().join("kernels")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut kernels: Vec<String> = names.map(|name| name.split_once('-').unwrap().0.to_owned()).collect();
        kernels.sort();
        kernels
    };
    let mut step = |count: u32| {
        let rows: Vec<Row> = (0..count).map(|position| Row { token: 0, sequence: 0, position, output: true }).collect();
        b.step(&rows, |b| b.linear(&mut out, &x, &weight)).unwrap();
        b.read_largest(&out, 64, &mut vec![None; count as usize]).unwrap();
    };
    step(1);
    assert_eq!(files(), ["argmax", "copy", "gemv", "quantize"]);
    // The order of codes for many tokens is another, and which tile is taken depends on the device.
    step(16);
    step(16);
    assert_eq!(files(), ["argmax", "copy", "gemm", "gemm", "gemv", "quantize", "quantize"]);
}
