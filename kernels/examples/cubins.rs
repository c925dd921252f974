//! Compiles the kernels for Orin (8.7) and Hopper (9.0) with NVRTC, which needs no GPU, and writes the machine code to a folder, a file
//! NAME.ARCHITECTURE.cubin each: `cargo run -p trine-kernels --example cubins -- FOLDER`. `ci/cuda-check` looks at them.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use trine_backend::{Activation, Format, Group, KvFormat, ZeroKind};
use trine_kernels::{Cache, Compiler, Epilogue, Gemv, Kernel, Quantize};

const ARCHITECTURES: [u32; 2] = [87, 90];

/// Every kernel with the choices that make a difference, by a name that says which.
fn kernels() -> Vec<(String, Kernel)> {
    let mut all = Vec::new();
    let overlap = false;
    let int4 = |group, zero| Format::Int4 { group, zero };
    let (symmetric, point, min) = (ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min);
    let default = int4(Group::G32, symmetric);
    let gemv = |format, activation, rows, tokens| Gemv {
        format,
        activation,
        rows,
        tokens,
        epilogue: Epilogue::Store,
        norm: false,
        per: Some(7),
        threads: 128,
    };
    for (format, activation) in [
        (default, Activation::Block),
        (int4(Group::G32, min), Activation::Block),
        (int4(Group::G128, point), Activation::Block),
        (int4(Group::Row, symmetric), Activation::Token),
        (Format::Int8 { group: Group::G32 }, Activation::Block),
        (Format::Ternary, Activation::Token),
    ] {
        for tokens in [1, 8] {
            let name = format!("gemv {format} {tokens} tokens");
            all.push((name, gemv(format, activation, 2, tokens).kernel(overlap)));
        }
        for tile in [64, 128] {
            let name = format!("gemm {format} {tile}");
            all.push((name, Kernel::gemm(format, activation, tile, Epilogue::Store, overlap)));
        }
        all.push((format!("embed {format}"), Kernel::embed(format, overlap)));
    }
    for rows in [1, 2, 4, 8] {
        let one = gemv(default, Activation::Block, rows, 1);
        all.push((format!("gemv o{rows}"), one.kernel(overlap)));
        let threads = Gemv::gated_threads(rows);
        let gated = Gemv { epilogue: Epilogue::Gated, norm: true, threads, ..one };
        all.push((format!("gemv o{rows} norm gated"), gated.kernel(overlap)));
    }
    let plain = gemv(default, Activation::Block, 2, 1);
    all.push(("gemv norm".into(), Gemv { norm: true, threads: 256, ..plain }.kernel(overlap)));
    all.push((
        "gemv long rows add".into(),
        Gemv { epilogue: Epilogue::Add, per: Some(37), rows: 1, ..plain }.kernel(overlap),
    ));
    all.push(("gemv any width".into(), Gemv { per: None, ..plain }.kernel(overlap)));
    for tokens in [2, 4] {
        all.push((format!("gemv {tokens} tokens"), Gemv { tokens, ..plain }.kernel(overlap)));
    }
    for format in [Format::F32, Format::F16, Format::Bf16] {
        all.push((format!("dense {format}"), Kernel::dense(format, Epilogue::Store, overlap)));
    }
    for cache in [KvFormat::F32, KvFormat::F16, KvFormat::Int8] {
        for rope in [false, true] {
            let name = format!("attend {cache:?}{}", if rope { " rope" } else { "" });
            all.push((name, Kernel::attend(rope, cache, Quantize::Block, Some((128, 7)), overlap)));
        }
        let name = format!("attend_rows {cache:?}");
        all.push((name, Kernel::attend_rows(cache, Quantize::Block, Some((128, 7)), overlap)));
        all.push((format!("rope_store_kv {cache:?}"), Kernel::rope_store_kv(true, true, cache, overlap)));
    }
    all.push(("attend any width".into(), Kernel::attend(true, KvFormat::F16, Quantize::Block, None, overlap)));
    let narrow = Kernel::attend_rows(KvFormat::F16, Quantize::Block, Some((64, 4)), overlap);
    all.extend([
        ("attend_rows narrow".into(), narrow),
        ("attend_rows any width".into(), Kernel::attend_rows(KvFormat::F16, Quantize::Block, None, overlap)),
    ]);
    for quantize in [Quantize::Token, Quantize::Block] {
        all.push((format!("rms_norm {quantize:?}"), Kernel::rms_norm(quantize, overlap)));
        all.push((format!("quantize {quantize:?}"), Kernel::quantize(quantize, overlap)));
    }
    all.push(("gated".into(), Kernel::gated(Quantize::Block, overlap)));
    for file in ["add", "argmax", "copy", "head_norm", "select_rows"] {
        all.push((file.into(), Kernel::plain(file, overlap)));
    }
    for file in Kernel::files() {
        assert!(all.iter().any(|(_, kernel)| kernel.file == file), "no variant of {file}");
    }
    all
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("which folder?")?);
    std::fs::create_dir_all(&folder)?;
    let compiler = Compiler::open(Cache::at(folder.join("cache")))?;
    println!("{}", compiler.name());
    let kernels = kernels();
    let left: Vec<_> =
        ARCHITECTURES.iter().flat_map(|&arch| kernels.iter().map(move |kernel| (arch, kernel))).collect();
    let (left, faults) = (Mutex::new(left), Mutex::new(Vec::new()));
    let work = || {
        // The lock is given back before the work begins.
        while let Some((architecture, (name, kernel))) = { left.lock().map(|mut left| left.pop()).unwrap_or(None) } {
            let file = folder.join(format!("{}.{architecture}.cubin", name.replace(' ', "_")));
            let made = compiler.machine_code(kernel, architecture).map_err(|why| why.to_string());
            let written = made.and_then(|code| std::fs::write(&file, code).map_err(|why| why.to_string()));
            if let (Err(why), Ok(mut faults)) = (written, faults.lock()) {
                faults.push(format!("{name}: {why}"));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let faults = faults.into_inner()?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}
