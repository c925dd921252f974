//! From nodes to launches.
//!
//! A node's kernel, the constants that it is compiled with, its grid and its arguments. Where an op's result is
//! multiplied with a matrix next, the op's own launch quantises it; where nothing else asks for the floats, they are not
//! written.

use std::sync::Arc;

use trine_backend::{Activation, Format, Gate, Group, Heads, Result, ZeroKind};
use trine_kernels::args::{self, Args};

use crate::driver::{Driver, Launch};
use crate::fuse::{Input, MOST_FEW_ROWS, Node, Target, fuse};
use crate::kv::{Cache, cache_constant};
use crate::memory::{Memory, Piece};
use crate::op::{Buf, Op, Shared, is_needed};
use crate::options::RowsPerThread;
use crate::weights::Matrix;

/// Positions of a chunk of attention.
const CHUNK: usize = 64;
/// Query heads that a block of attention takes.
const HEADS_PER_BLOCK: usize = 8;
/// Bytes of attention's partial sums: the rows of a larger step are taken a part at a time.
const PARTIALS: u64 = 64 << 20;
/// Threads of a block that has a column each.
const THREADS: u32 = 256;

/// What a plan depends on beside the ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Rows of the step, and rows that `select_outputs` keeps.
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    /// Chunks of attention that the longest sequence may need, a power of two.
    pub(crate) chunks: usize,
}

impl Shape {
    pub(crate) fn new(rows: usize, outputs: usize, longest: usize) -> Shape {
        Shape { rows, outputs, chunks: longest.div_ceil(CHUNK).next_power_of_two() }
    }
}

/// Memory that launches share for what lives no longer than they do.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Attention's partial sums.
    partials: Option<Piece>,
    /// How many blocks of a row have ended; each launch leaves zeros.
    counters: Option<Piece>,
}

impl Scratch {
    /// The addresses of `bytes` of partial sums and of `counters` words, and whether earlier plans hold others.
    pub(crate) fn reserve(&mut self, memory: &Memory, bytes: u64, counters: u64) -> Result<([u64; 2], bool)> {
        let mut grown = false;
        let mut piece = |piece: &mut Option<Piece>, bytes: u64| -> Result<u64> {
            if piece.as_ref().is_none_or(|piece| piece.bytes() < bytes) {
                grown |= piece.is_some();
                *piece = Some(memory.zeros("sums of attention", bytes)?);
            }
            Ok(piece.as_ref().map_or(0, Piece::address))
        };
        let addresses = [piece(&mut self.partials, bytes)?, piece(&mut self.counters, 4 * counters)?];
        Ok((addresses, grown))
    }
}

/// The device and what a plan needs of it.
pub(crate) struct Planner<'a> {
    pub(crate) driver: &'a Arc<dyn Driver>,
    pub(crate) memory: &'a Memory,
    pub(crate) scratch: &'a mut Scratch,
    /// Addresses of the step's rows, and of the selected ones.
    pub(crate) steps: [u64; 2],
    pub(crate) shape: Shape,
    /// Rows of a matrix that share activations, where the user says so.
    pub(crate) rows_per_thread: Option<RowsPerThread>,
}

/// Launches, and whether plans that were made before must be forgotten: their scratch memory is gone.
pub(crate) struct Plan {
    pub(crate) launches: Vec<Launch>,
    pub(crate) invalidates: bool,
}

impl Planner<'_> {
    pub(crate) fn plan(self, ops: &[Op]) -> Result<Plan> {
        let Shape { rows, outputs, .. } = self.shape;
        let plan = Plan { launches: Vec::new(), invalidates: false };
        let mut course = Course { planner: self, rows, selected: false, quantized: Vec::new(), plan };
        for (node, end) in fuse(ops, rows, outputs) {
            course.node(&node, &ops[end..])?;
        }
        Ok(course.plan)
    }
}

/// A plan on its way through the nodes.
struct Course<'a> {
    planner: Planner<'a>,
    /// The rows that ops work on now.
    rows: usize,
    selected: bool,
    /// Buffers whose codes are those of their floats.
    quantized: Vec<(Buf, Activation)>,
    plan: Plan,
}

/// Codes of a result: how they are made, and where they go.
struct Codes {
    constant: u32,
    codes: u64,
    spans: u64,
    /// Where the floats go; 0 if nobody asks for them.
    floats: u64,
}

impl Course<'_> {
    fn node(&mut self, node: &Node, later: &[Op]) -> Result<()> {
        match node {
            Node::Product { weight, input, bias, target } => {
                self.product(weight, input, bias.as_ref(), target, later)?;
            }
            Node::AttendRotating { out, qkv, table, cache, layer, heads } => {
                self.attend(out, qkv, cache, *layer, *heads, Some(table), later)?;
            }
            Node::Alone(op) => self.op(op, later)?,
        }
        Ok(())
    }

    fn op(&mut self, op: &Op, later: &[Op]) -> Result<()> {
        match op {
            Op::Embed { out, table } => self.embed(out, table),
            Op::RmsNorm { out, x, add, weight, eps } => self.rms_norm(out, x, add.as_ref(), weight, *eps, later),
            Op::Linear { .. } => unreachable!("each product is a node of its own kind"),
            Op::AddBias { x, bias } => self.add(x, bias.floats.address(), 0),
            Op::Add { x, y } => self.add(x, y.floats.address(), y.columns),
            Op::HeadNorm { qkv, heads, query, key, eps } => self.head_norm(qkv, *heads, query, key, *eps),
            Op::RopeStoreKv { qkv, heads, table, cache } => {
                self.rope_store_kv(qkv, *heads, table.as_ref(), cache.as_ref())
            }
            Op::Attend { out, qkv, cache, layer, heads } => self.attend(out, qkv, cache, *layer, *heads, None, later),
            Op::Gated { out, gate_up, gate } => self.gated(out, gate_up, *gate, later),
            Op::SelectOutputs { out, x } => self.select(out, x),
        }
    }

    /// Adds a launch, unless there is nothing for it to do.
    fn push<A: Args>(
        &mut self,
        file: &'static str,
        constants: &[(&'static str, u32)],
        grid: [usize; 3],
        threads: u32,
        arguments: &A,
        about: (String, u64),
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let launch = launch(self.planner.driver, file, constants, grid, threads, arguments, about)?;
        self.plan.launches.push(launch);
        Ok(())
    }

    /// A kernel whose threads have a column each.
    fn columns<A: Args>(
        &mut self,
        file: &'static str,
        constants: &[(&'static str, u32)],
        columns: usize,
        arguments: &A,
    ) -> Result<()> {
        let grid = [columns.div_ceil(THREADS as usize), self.rows, 1];
        self.push(file, constants, grid, THREADS, arguments, (format!("{file} {columns}"), 0))
    }

    fn step(&self) -> u64 {
        self.planner.steps[usize::from(self.selected)]
    }

    /// A buffer's floats are about to be others: its codes are of no use any more.
    fn changed(&mut self, buf: &Buf) {
        self.quantized.retain(|(other, _)| other != buf);
    }

    /// Where a result goes as codes, if the op after it is a product that wants it quantised in a way that `can` do.
    fn codes_of(&mut self, out: &Buf, later: &[Op], can: &[Activation]) -> Result<Codes> {
        self.changed(out);
        let wanted = match later.first() {
            Some(Op::Linear { x, weight, .. }) if x == out => weight.activation,
            _ => Activation::Float,
        };
        if !can.contains(&wanted) {
            return Ok(Codes { constant: 0, codes: 0, spans: 0, floats: out.floats.address() });
        }
        let (codes, spans) = out.quantized_row(self.planner.memory, 0)?;
        self.quantized.push((out.clone(), wanted));
        let floats = if floats_needed(out, wanted, later) { out.floats.address() } else { 0 };
        Ok(Codes { constant: activation_constant(wanted), codes, spans, floats })
    }

    fn embed(&mut self, out: &Buf, table: &Matrix) -> Result<()> {
        let [codes, scales, zeros] = table.addresses();
        let arguments = args::Embed {
            codes,
            scales,
            zeros,
            step: self.step(),
            out: out.floats.address(),
            columns: table.columns as u32,
            per: if table.format.is_dense() { table.pitch() } else { table.per() } as u32,
            slots: table.slots() as u32,
            rows: table.rows as u32,
        };
        self.changed(out);
        self.columns("embed", &format_constants(table.format), table.columns, &arguments)
    }

    fn rms_norm(
        &mut self,
        out: &Buf,
        x: &Buf,
        add: Option<&Buf>,
        weight: &Buf,
        eps: f32,
        later: &[Op],
    ) -> Result<()> {
        if add.is_some() {
            self.changed(x);
        }
        let codes = self.codes_of(out, later, &[Activation::Token, Activation::Block])?;
        let arguments = args::RmsNorm {
            x: x.floats.address(),
            y: add.map_or(0, |y| y.floats.address()),
            weight: weight.floats.address(),
            out: codes.floats,
            codes: codes.codes,
            spans: codes.spans,
            columns: x.columns as u32,
            per: x.per() as u32,
            eps,
            unused: 0,
        };
        let about = (format!("rms_norm {}", x.columns), 0);
        self.push("rms_norm", &[("QUANTIZE", codes.constant)], [1, self.rows, 1], THREADS, &arguments, about)
    }

    fn add(&mut self, x: &Buf, y: u64, y_pitch: usize) -> Result<()> {
        self.changed(x);
        let (columns, y_pitch) = (x.columns as u32, y_pitch as u32);
        self.columns("add", &[], x.columns, &args::Add { x: x.floats.address(), y, columns, y_pitch })
    }

    fn head_norm(&mut self, qkv: &Buf, heads: Heads, query: &Buf, key: &Buf, eps: f32) -> Result<()> {
        self.changed(qkv);
        let arguments = args::HeadNorm {
            qkv: qkv.floats.address(),
            query: query.floats.address(),
            key: key.floats.address(),
            dim: heads.dim as u32,
            query_heads: heads.query as u32,
            kv_heads: heads.kv as u32,
            eps,
        };
        let grid = [heads.query + heads.kv, self.rows, 1];
        self.push("head_norm", &[], grid, 128, &arguments, (format!("head_norm {}", heads.dim), 0))
    }

    fn rope_store_kv(
        &mut self,
        qkv: &Buf,
        heads: Heads,
        table: Option<&Buf>,
        cache: Option<&(Shared<Cache>, usize)>,
    ) -> Result<()> {
        self.changed(qkv);
        let [keys, values, key_scales, value_scales] = cache.map_or([0; 4], |(cache, layer)| cache.addresses(*layer));
        let arguments = args::RopeStoreKv {
            step: self.step(),
            qkv: qkv.floats.address(),
            table: table.map_or(0, |table| table.floats.address()),
            keys,
            values,
            key_scales,
            value_scales,
            dim: heads.dim as u32,
            query_heads: heads.query as u32,
            kv_heads: heads.kv as u32,
            context: cache.map_or(0, |(cache, _)| cache.shape.context as u32),
        };
        let constants = [
            ("ROPE", u32::from(table.is_some())),
            ("STORE", u32::from(cache.is_some())),
            ("CACHE", cache.map_or(0, |(cache, _)| cache_constant(cache.format))),
        ];
        let grid = [heads.query + 2 * heads.kv, self.rows, 1];
        self.push("rope_store_kv", &constants, grid, 128, &arguments, (format!("rope_store_kv {}", heads.dim), 0))
    }

    #[allow(clippy::too_many_arguments)] // They are the op's own, with what its neighbours ask for.
    fn attend(
        &mut self,
        out: &Buf,
        qkv: &Buf,
        cache: &Shared<Cache>,
        layer: usize,
        heads: Heads,
        rope: Option<&Buf>,
        later: &[Op],
    ) -> Result<()> {
        let can: &[Activation] = if heads.dim.is_multiple_of(32) { &[Activation::Block] } else { &[] };
        let codes = self.codes_of(out, later, can)?;
        let (chunks, batches) = (self.planner.shape.chunks, heads.group().div_ceil(HEADS_PER_BLOCK));
        let row_bytes = (heads.query * chunks * (heads.dim + 2) * 4) as u64;
        let part = self.rows.min((PARTIALS / row_bytes) as usize).max(1);
        let counters = part * heads.kv * batches;
        let reserved = self.planner.scratch.reserve(self.planner.memory, part as u64 * row_bytes, counters as u64)?;
        let ([partials, counters], invalidates) = reserved;
        self.plan.invalidates |= invalidates;
        let [keys, values, key_scales, value_scales] = cache.addresses(layer);
        let constants = [
            ("CACHE", cache_constant(cache.format)),
            ("ROPE", u32::from(rope.is_some())),
            ("QUANTIZE", codes.constant),
        ];
        for first in (0..self.rows).step_by(part) {
            let rows = part.min(self.rows - first);
            let (out_codes, out_spans) = match codes.constant {
                0 => (0, 0),
                _ => out.quantized_row(self.planner.memory, first)?,
            };
            let arguments = args::Attend {
                step: self.step() + (first * size_of::<args::StepRow>()) as u64,
                qkv: qkv.row(first),
                table: rope.map_or(0, |table| table.floats.address()),
                keys,
                values,
                key_scales,
                value_scales,
                partials,
                counters,
                out: if codes.floats == 0 { 0 } else { out.row(first) },
                codes: out_codes,
                spans: out_spans,
                dim: heads.dim as u32,
                query_heads: heads.query as u32,
                kv_heads: heads.kv as u32,
                context: cache.shape.context as u32,
                chunks: chunks as u32,
                per: out.per() as u32,
                scale: (1.0 / (heads.dim as f64).sqrt()) as f32,
                unused: 0,
            };
            let about = (format!("attend {}x{} chunks {chunks}", heads.query, heads.dim), 0);
            let grid = [chunks, heads.kv * batches, rows];
            self.push("attend", &constants, grid, THREADS, &arguments, about)?;
        }
        Ok(())
    }

    fn gated(&mut self, out: &Buf, gate_up: &Buf, gate: Gate, later: &[Op]) -> Result<()> {
        let codes = self.codes_of(out, later, &[Activation::Block])?;
        let arguments = args::Gated {
            gate_up: gate_up.floats.address(),
            out: codes.floats,
            codes: codes.codes,
            spans: codes.spans,
            columns: out.columns as u32,
            per: out.per() as u32,
            gate: gate_constant(gate),
            unused: 0,
        };
        let grid = [out.columns.div_ceil(32).div_ceil(32), self.rows, 1];
        let about = (format!("gated {}", out.columns), 0);
        self.push("gated", &[("QUANTIZE", codes.constant)], grid, THREADS, &arguments, about)
    }

    fn select(&mut self, out: &Buf, x: &Buf) -> Result<()> {
        let arguments = args::SelectRows {
            step: self.planner.steps[0],
            x: x.floats.address(),
            out: out.floats.address(),
            columns: x.columns as u32,
            unused: 0,
        };
        self.changed(out);
        self.rows = self.planner.shape.outputs;
        self.selected = true;
        self.columns("select_rows", &[], x.columns, &arguments)
    }

    /// The codes of a buffer's rows, made now unless they are there.
    fn quantize(&mut self, x: &Buf, activation: Activation) -> Result<(u64, u64)> {
        let (codes, spans) = x.quantized_row(self.planner.memory, 0)?;
        if self.quantized.iter().any(|(buf, has)| buf == x && *has == activation) {
            return Ok((codes, spans));
        }
        let arguments =
            args::Quantize { x: x.floats.address(), codes, spans, columns: x.columns as u32, per: x.per() as u32 };
        let blocks = if activation == Activation::Token { 1 } else { x.columns.div_ceil(32).div_ceil(32) };
        let constants = [("QUANTIZE", activation_constant(activation))];
        let about = (format!("quantize {}", x.columns), 0);
        self.push("quantize", &constants, [blocks, self.rows, 1], THREADS, &arguments, about)?;
        self.changed(x);
        self.quantized.push((x.clone(), activation));
        Ok((codes, spans))
    }

    fn product(
        &mut self,
        weight: &Shared<Matrix>,
        input: &Input,
        bias: Option<&Buf>,
        target: &Target,
        later: &[Op],
    ) -> Result<()> {
        let bias = bias.map_or(0, |bias| bias.floats.address());
        let (out, epilogue) = match target {
            Target::Store(out) => (out, 0),
            Target::AddTo(out) => (out, 1),
            Target::Gated(out, _) => (out, 2),
        };
        let rows = if epilogue == 2 { weight.rows / 2 } else { weight.rows };
        assert!(out.columns == rows, "linear: a result of {rows} columns in a buffer of {}", out.columns);
        if weight.format.is_dense() {
            let Input::Rows(x) = input else { unreachable!("only codes are made of a norm") };
            return self.dense(weight, x, bias, out, epilogue);
        }
        let [codes, scales, zeros] = weight.addresses();
        let mut arguments = args::Product {
            codes,
            scales,
            zeros,
            bias,
            rows: weight.rows as u32,
            columns: weight.columns as u32,
            per: weight.per() as u32,
            slots: weight.slots() as u32,
            tokens: self.rows as u32,
            out_pitch: out.columns as u32,
            ..args::Product::default()
        };
        match input {
            Input::Rows(x) => {
                assert_eq!(x.columns, weight.columns, "linear: the activations' columns");
                (arguments.x_codes, arguments.x_spans) = self.quantize(x, weight.activation)?;
            }
            Input::Normed { x, weight: norm, eps } => {
                assert_eq!(x.columns, weight.columns, "linear: the activations' columns");
                (arguments.x, arguments.norm, arguments.eps) = (x.floats.address(), norm.floats.address(), *eps);
            }
        }
        if let Target::Gated(out, gate) = target {
            let made = self.codes_of(out, later, &[Activation::Block])?;
            // The kernel always writes codes.
            (arguments.out_codes, arguments.out_spans) = out.quantized_row(self.planner.memory, 0)?;
            (arguments.out, arguments.out_per, arguments.gate) = (made.floats, out.per() as u32, gate_constant(*gate));
        } else {
            self.changed(out);
            arguments.out = out.floats.address();
        }
        let normed = matches!(input, Input::Normed { .. });
        if self.rows <= MOST_FEW_ROWS {
            self.gemv(weight, &arguments, normed, epilogue)
        } else {
            self.gemm(weight, &arguments, epilogue)
        }
    }
    /// A product that reads the weights once for all rows of the step.
    fn gemv(&mut self, weight: &Matrix, arguments: &args::Product, normed: bool, epilogue: u32) -> Result<()> {
        let mut constants = format_constants(weight.format);
        let tokens = self.rows.next_power_of_two();
        let (rows_per_thread, threads) = self.gemv_tile(tokens, epilogue);
        constants.extend([
            ("INTEGER", u32::from(weight.is_integer())),
            ("ROWS", rows_per_thread),
            ("TOKENS", tokens as u32),
            ("EPILOGUE", epilogue),
            ("NORM", u32::from(normed)),
            ("PER", self.constant_per(weight)),
            ("THREADS", threads),
        ]);
        let tile = (threads / 16 * rows_per_thread) as usize;
        let tiles = weight.rows.div_ceil(tile);
        let parts = [if normed { " norm" } else { "" }, ["", " add", " gated"][epilogue as usize]].concat();
        let label = format!("gemv {} {}x{}{parts}", weight.format, weight.rows, weight.columns);
        self.push("gemv", &constants, [tiles, 1, 1], threads, arguments, (label, weight.bytes()))
    }

    /// The same through tensor cores, a tile of rows and tokens for each block.
    fn gemm(&mut self, weight: &Matrix, arguments: &args::Product, epilogue: u32) -> Result<()> {
        let mut constants = format_constants(weight.format);
        constants.extend([("INTEGER", u32::from(weight.is_integer())), ("EPILOGUE", epilogue)]);
        let grid = [weight.rows.div_ceil(128), self.rows.div_ceil(64), 1];
        let add = if epilogue == 1 { " add" } else { "" };
        let label = format!("gemm {} {}x{}{add}", weight.format, weight.rows, weight.columns);
        self.push("gemm", &constants, grid, THREADS, arguments, (label, weight.bytes()))
    }

    fn dense(&mut self, weight: &Matrix, x: &Buf, bias: u64, out: &Buf, epilogue: u32) -> Result<()> {
        assert_eq!(x.columns, weight.columns, "linear: the activations' columns");
        self.changed(out);
        let arguments = args::Dense {
            weights: weight.codes.address(),
            x: x.floats.address(),
            bias,
            out: out.floats.address(),
            rows: weight.rows as u32,
            columns: weight.columns as u32,
            pitch: weight.pitch() as u32,
            tokens: self.rows as u32,
            out_pitch: out.columns as u32,
            unused: 0,
        };
        let mut constants = format_constants(weight.format);
        constants.truncate(1);
        constants.push(("EPILOGUE", epilogue));
        let grid = [weight.rows.div_ceil(8), self.rows.div_ceil(8), 1];
        let label = format!("dense {} {}x{}", weight.format, weight.rows, weight.columns);
        self.push("dense", &constants, grid, THREADS, &arguments, (label, weight.bytes()))
    }

    /// Rows that a thread of a product computes together, and threads of its block.
    fn gemv_tile(&self, tokens: usize, epilogue: u32) -> (u32, u32) {
        let rows = match self.planner.rows_per_thread {
            Some(rows) => rows.count(),
            None if tokens == 1 => 2,
            None => 4,
        };
        // The gate's kernel makes 32 outputs of 64 rows.
        if epilogue == 2 { (rows, 64 * 16 / rows) } else { (rows, 128) }
    }

    /// Units of a segment as a constant of the kernel; 0 where one kernel is to serve all.
    fn constant_per(&self, weight: &Matrix) -> u32 {
        if self.planner.driver.facts().emulated { 0 } else { weight.per() as u32 }
    }
}

/// A launch of a kernel that is compiled with these constants.
pub(crate) fn launch<A: Args>(
    driver: &Arc<dyn Driver>,
    file: &'static str,
    constants: &[(&'static str, u32)],
    grid: [usize; 3],
    threads: u32,
    arguments: &A,
    (label, bytes): (String, u64),
) -> Result<Launch> {
    let kernel = driver.kernel(&trine_kernels::Kernel::new(file, constants))?;
    let words = arguments.bytes().chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    Ok(Launch { kernel, grid: grid.map(|size| size as u32), threads, arguments: words.collect(), label, bytes })
}

/// Whether anyone looks at the floats of `out` where its codes are there: an op other than a product that wants these
/// codes, or who reads the buffer after the step.
fn floats_needed(out: &Buf, activation: Activation, later: &[Op]) -> bool {
    for (at, op) in later.iter().enumerate() {
        match op {
            Op::Linear { out: target, x, weight } if x == out && weight.activation == activation => {
                if target == out {
                    return false;
                }
            }
            _ => return is_needed(out, &later[at..]),
        }
    }
    true
}

fn activation_constant(activation: Activation) -> u32 {
    match activation {
        Activation::Float => 0,
        Activation::Token => 1,
        Activation::Block => 2,
    }
}

fn gate_constant(gate: Gate) -> u32 {
    match gate {
        Gate::Silu => 0,
        Gate::Relu2 => 1,
    }
}

/// The kernels' numbers for a format.
fn format_constants(format: Format) -> Vec<(&'static str, u32)> {
    let units = |group| match group {
        Group::G32 => 1,
        Group::G64 => 2,
        Group::G128 => 4,
        Group::Row => 0,
    };
    let (number, zero, group) = match format {
        Format::Ternary => (0, 0, 0),
        Format::Int4 { group, zero } => {
            let zero = match zero {
                ZeroKind::Symmetric => 0,
                ZeroKind::Point => 1,
                ZeroKind::Min => 2,
            };
            (1, zero, units(group))
        }
        Format::Int8 { group } => (2, 0, units(group)),
        Format::F32 => (3, 0, 0),
        Format::F16 => (4, 0, 0),
        Format::Bf16 => (5, 0, 0),
    };
    vec![("FORMAT", number), ("ZERO", zero), ("GROUP", group)]
}
