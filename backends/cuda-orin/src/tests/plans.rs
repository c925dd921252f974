//! What a step becomes: launches of a layer, what is fused and what must not be.

use std::sync::Arc;

use half::f16;
use trine_backend::recorded::Shape;
use trine_backend::{Codes, Format, Gate, Group, Heads, HostMatrix, Int4, KvFormat, KvShape, Zero, ZeroKind};

use super::nowhere::{MEMORY, Nowhere};
use crate::buffers::Buffer;
use crate::driver::Driver;
use crate::explain::explain;
use crate::kv::Cache;
use crate::memory::Memory;
use crate::op::{Buf, Op, Shared, is_needed};
use crate::options::RowsPerThread;
use crate::plan::{Planner, Scratch, tile_of_many};
use crate::weights::Matrix;

const HIDDEN: usize = 64;
const INNER: usize = 96;
const HEADS: Heads = Heads { query: 2, kv: 1, dim: 32 };

/// A model's layers as ops, and what plans them.
struct Steps {
    driver: Arc<dyn Driver>,
    memory: Memory,
    ops: Vec<Op>,
}

impl Steps {
    fn buffer(&self, columns: usize) -> Buf {
        Shared::new(Buffer::new(&self.memory, 16, columns).unwrap())
    }

    fn matrix(&self, rows: usize, columns: usize) -> Shared<Matrix> {
        let codes = vec![0x88; rows * columns / 2];
        let scales = vec![f16::ONE; rows * columns / 32];
        let codes = Codes::Int4(Int4::new(Group::G32, codes, scales, Zero::Symmetric));
        Shared::new(Matrix::new(&self.memory, &HostMatrix::new(rows, columns, codes).unwrap()).unwrap())
    }

    /// As the model's graph has it: a bias on q|k|v, no sub-norms.
    fn new(layers: usize) -> Steps {
        let driver: Arc<dyn Driver> = Nowhere::new();
        let mut steps = Steps { memory: Memory::new(Arc::clone(&driver), true), driver, ops: Vec::new() };
        let shape = KvShape { layers, sequences: 1, context: 256, kv_heads: HEADS.kv, head_dim: HEADS.dim };
        let cache = Shared::new(Cache::new(&steps.memory, shape, KvFormat::F16).unwrap());
        let [x, normed, attention, delta] = [(); 4].map(|()| steps.buffer(HIDDEN));
        let (qkv, gate_up, gated) = (steps.buffer(HEADS.fused_width()), steps.buffer(2 * INNER), steps.buffer(INNER));
        let (weight, table, bias) = (steps.buffer(HIDDEN), steps.buffer(HEADS.dim), steps.buffer(HEADS.fused_width()));
        let norm = |add: Option<&Buf>| Op::RmsNorm {
            out: normed.clone(),
            x: x.clone(),
            add: add.cloned(),
            weight: weight.clone(),
            eps: 1e-6,
        };
        let mut ops = vec![Op::Embed { out: x.clone(), table: steps.matrix(50, HIDDEN) }];
        for layer in 0..layers {
            let linear = |out: &Buf, x: &Buf, rows, columns| Op::Linear {
                out: out.clone(),
                x: x.clone(),
                weight: steps.matrix(rows, columns),
            };
            ops.push(norm(Some(&delta).filter(|_| layer > 0)));
            ops.push(linear(&qkv, &normed, HEADS.fused_width(), HIDDEN));
            ops.push(Op::AddBias { x: qkv.clone(), bias: bias.clone() });
            let (table, cached) = (Some(table.clone()), Some((cache.clone(), layer)));
            ops.push(Op::RopeStoreKv { qkv: qkv.clone(), heads: HEADS, table, cache: cached });
            let (out, cache) = (attention.clone(), cache.clone());
            ops.push(Op::Attend { out, qkv: qkv.clone(), cache, layer, heads: HEADS });
            ops.push(linear(&delta, &attention, HIDDEN, HIDDEN));
            ops.push(norm(Some(&delta)));
            ops.push(linear(&gate_up, &normed, 2 * INNER, HIDDEN));
            ops.push(Op::Gated { out: gated.clone(), gate_up: gate_up.clone(), gate: Gate::Silu });
            ops.push(linear(&delta, &gated, HIDDEN, INNER));
        }
        ops.push(Op::Add { x, y: delta });
        steps.ops = ops;
        steps
    }

    /// The same, with the logits of the selected rows, after which nothing else is of use to anyone.
    fn with_logits(layers: usize) -> Steps {
        let mut steps = Steps::new(layers);
        let [selected, normed] = [(); 2].map(|()| steps.buffer(HIDDEN));
        let Some(Op::Add { x, .. }) = steps.ops.last().cloned() else { panic!("the last op adds") };
        let (weight, logits) = (steps.buffer(HIDDEN), steps.buffer(50));
        let mut used: Vec<Buf> = steps.ops.iter().filter_map(|op| op.overwrites().cloned()).collect();
        used.extend([selected.clone(), normed.clone()]);
        let out = selected.clone();
        steps.ops.extend([
            Op::SelectOutputs { out, x },
            Op::RmsNorm { out: normed.clone(), x: selected, add: None, weight, eps: 1e-6 },
            Op::Linear { out: logits, x: normed, weight: steps.matrix(50, HIDDEN) },
        ]);
        steps.ops.extend(used.into_iter().map(|buf| Op::Discard { buf }));
        steps
    }

    /// The kernels of a step of so many rows.
    fn kernels(&self, rows: usize) -> Vec<String> {
        self.launches(&self.ops, rows)
            .into_iter()
            .map(|(name, label)| {
                let fused: Vec<&str> = ["norm", "add", "gated"]
                    .into_iter()
                    .filter(|part| label.ends_with(part) || label.contains(&format!(" {part} ")))
                    .collect();
                if name == "gemv" { format!("gemv {}", fused.join(" ")).trim().to_owned() } else { name.to_owned() }
            })
            .collect()
    }

    fn launches(&self, ops: &[Op], rows: usize) -> Vec<(&'static str, String)> {
        let mut scratch = Scratch::default();
        let planner = Planner {
            driver: &self.driver,
            memory: &self.memory,
            scratch: &mut scratch,
            steps: [0, 256],
            shape: Shape { rows, outputs: 1, chunks: 1 },
            rows_per_thread: None,
        };
        let launches = planner.plan(ops).unwrap().launches;
        launches.into_iter().map(|launch| (launch.kernel.name, launch.label)).collect()
    }
}

#[test]
fn a_layer_of_one_token_is_five_launches() {
    let kernels = Steps::new(3).kernels(1);
    let layer = ["gemv norm", "attend", "gemv add", "gemv norm gated", "gemv add"];
    assert_eq!(kernels[0], "embed");
    assert_eq!(kernels[1..6], layer);
    assert_eq!(kernels[6..11], layer);
    // What the last layer leaves in its buffers can be read.
    let last = ["gemv norm", "rope_store_kv", "attend", "gemv add", "rms_norm", "gemv", "gated", "gemv", "add"];
    assert_eq!(kernels[11..], last);
}

#[test]
fn what_is_discarded_is_left_out() {
    let steps = Steps::with_logits(2);
    let kernels = steps.kernels(1);
    let layer = ["gemv norm", "attend", "gemv add", "gemv norm gated", "gemv add"];
    assert_eq!(kernels[1..6], layer);
    assert_eq!(kernels[6..11], layer);
    // All rows are selected, so that nothing has to be copied.
    assert_eq!(kernels[11..], ["gemv norm"]);
    let several = steps.kernels(4);
    assert_eq!(several[several.len() - 2..], ["select_rows", "gemv norm"]);
    // A buffer that is read after the selection is needed, whatever is discarded in the end.
    let Some(Op::Add { x, .. }) = steps.ops.iter().find(|op| matches!(op, Op::Add { .. })) else { panic!() };
    let at = steps.ops.iter().position(|op| matches!(op, Op::SelectOutputs { .. })).unwrap();
    assert!(is_needed(x, &steps.ops[at..]) && !is_needed(x, &steps.ops[at + 1..]));
}

#[test]
fn tiles_of_many_tokens_fit_the_device() {
    // Tiles for all multiprocessors at once, several times over; a few more than that; too few.
    assert_eq!(tile_of_many(3584, 512, 132), 128);
    assert_eq!(tile_of_many(37888, 512, 132), 128);
    assert_eq!(tile_of_many(4608, 512, 132), 64);
    assert_eq!(tile_of_many(1024, 64, 132), 64);
}

#[test]
fn more_tokens_quantise_in_the_op_before_a_product() {
    for (rows, product, attend) in [(4, "gemv", "attend"), (16, "gemm", "attend_rows")] {
        let kernels = Steps::new(2).kernels(rows);
        let unfused = ["rms_norm", product, "rope_store_kv", attend];
        assert_eq!(kernels[1..5], unfused, "{rows} rows");
        assert!(!kernels.contains(&"quantize".to_owned()), "{kernels:?}");
    }
}

#[test]
fn what_someone_may_read_is_written() {
    let steps = Steps::new(1);
    // A norm whose output a later step may want, and a product that nobody adds.
    let alone = steps.launches(&steps.ops[1..3], 1);
    assert_eq!(alone.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["rms_norm", "gemv"]);
    // Once the buffer is overwritten, the norm is of no use to anyone else.
    let twice: Vec<Op> = [&steps.ops[1..3], &steps.ops[1..3]].concat();
    let names: Vec<_> = steps.launches(&twice, 1).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["gemv", "rms_norm", "gemv"]);
}

#[test]
fn memory_comes_in_chunks_and_goes_back() {
    let driver = Nowhere::new();
    let memory = Memory::new(driver.clone(), true);
    let small: Vec<_> = (0..100).map(|_| memory.piece("small", 1000).unwrap()).collect();
    assert_eq!(driver.pieces.lock().unwrap().len(), 1);
    let mut addresses: Vec<u64> = small.iter().map(|piece| piece.address()).collect();
    addresses.dedup();
    assert!(addresses.len() == 100 && addresses.iter().all(|address| address % 256 == 0));
    let large = memory.piece("large", 100 << 20).unwrap();
    assert!(driver.taken() <= (133 << 20), "{}", driver.taken());
    let error = memory.piece("too much", MEMORY).unwrap_err().to_string();
    assert!(error.contains("too much: 1024 MiB do not fit") && error.contains("nowhere"), "{error}");
    assert!(memory.piece("endless", u64::MAX).is_err());
    drop((small, large, memory));
    assert_eq!(driver.taken(), 0);
}

#[test]
fn sizes_in_memory_are_those_of_the_layout() {
    let steps = Steps::new(1);
    // 70 rows of 3 units: 72 rows of one segment step of 16 lanes.
    let matrix = steps.matrix(70, 96);
    assert_eq!(matrix.format, Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric });
    assert_eq!((matrix.per(), matrix.slots()), (1, 16));
    assert_eq!(matrix.bytes(), 72 * 256 + 72 * 16 * 2);
}

#[test]
fn each_number_of_tokens_has_its_kernels() {
    let driver = Nowhere::new();
    let int4 = Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric };
    let names = |columns, format, tokens, asked| -> Vec<String> {
        let choices = explain((3584, columns), format, tokens, asked, driver.facts());
        assert!(choices.iter().all(|choice| choice.tokens == tokens && !choice.reason.contains('\n')));
        choices.into_iter().map(|choice| choice.kernel).collect()
    };
    assert_eq!(names(3584, int4, 1, None), ["gemv o2", "gemv o2 norm"]);
    // A row that is too long to be normalised by every block.
    assert_eq!(names(18944, int4, 1, None), ["gemv o1"]);
    assert_eq!(names(18944, int4, 1, Some(RowsPerThread::O8)), ["gemv o8"]);
    assert_eq!(names(3584, int4, 8, None), ["gemv o4"]);
    assert!(names(3584, int4, 512, None)[0].starts_with("gemm "));
    assert_eq!(names(3584, Format::F16, 512, None), ["dense"]);
}
