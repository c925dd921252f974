//! From nodes to launches.
//!
//! A node's kernel, the constants that it is compiled with, its grid and its arguments. Where an op's result is
//! multiplied with a matrix next, the op's own launch quantises it; where nothing else asks for the floats, they are not
//! written.

use std::sync::Arc;

use trine_backend::recorded::Shape;
use trine_backend::{Activation, Gate, Heads, KvFormat, Result};
use trine_kernels::args::{self, Args};
use trine_kernels::{Epilogue, Gemv, Kernel, Launch as Extent, Quantize, TOKENS};

use crate::driver::{Driver, Launch};
use crate::fuse::{Input, MOST_FEW_ROWS, Node, Target, fuse};
use crate::kv::Cache;
use crate::memory::{Memory, Piece};
use crate::op::{Buf, Op, Shared, is_needed};
use crate::options::RowsPerThread;
use crate::weights::Matrix;

/// Positions of a chunk of attention.
pub(crate) const CHUNK: usize = 64;
/// Bytes of attention's partial sums: the rows of a larger step are taken a part at a time.
const PARTIALS: u64 = 64 << 20;

/// Weights of a matrix from which on its product has a kernel that is made for its width.
const WORTH_A_KERNEL: usize = 1 << 19;

/// Rows of a matrix that keep a device busy however they are dealt out.
const MANY_ROWS: usize = 65536;
/// Units of a segment that one row's loads fill a thread's registers with.
const LONG_SEGMENT: usize = 16;
/// Columns of a head from which on attention has a kernel that is made for them.
const WORTH_A_HEAD: usize = 64;

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
    /// Whether a launch looks at the selected rows, which only an op after a selection does that asks for positions or tokens.
    pub(crate) selected_rows: bool,
}

impl Planner<'_> {
    pub(crate) fn plan(self, ops: &[Op]) -> Result<Plan> {
        let Shape { rows, outputs, .. } = self.shape;
        let plan = Plan { launches: Vec::new(), invalidates: false, selected_rows: false };
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
    /// Buffers whose codes are those of their floats, in the order that products of few or of many rows read.
    quantized: Vec<(Buf, Activation, bool)>,
    plan: Plan,
}

/// Codes of a result: how they are made, and where they go.
struct Codes {
    quantize: Quantize,
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
            Op::Discard { .. } => Ok(()),
        }
    }

    /// Adds a launch, unless there is nothing for it to do.
    fn push<A: Args>(
        &mut self,
        kernel: impl Fn(bool) -> Kernel,
        extent: Option<Extent>,
        arguments: &A,
        label: String,
        bytes: u64,
    ) -> Result<()> {
        let Some(extent) = extent.filter(|_| self.rows > 0) else { return Ok(()) };
        self.plan.launches.push(launch(self.planner.driver, kernel, extent, arguments, label, bytes)?);
        Ok(())
    }

    /// Whether products go through tensor cores.
    fn is_many(&self) -> bool {
        self.rows > MOST_FEW_ROWS
    }

    fn step(&mut self) -> u64 {
        self.plan.selected_rows |= self.selected;
        self.planner.steps[usize::from(self.selected)]
    }

    /// A buffer's floats are about to be others: its codes are of no use any more.
    fn changed(&mut self, buf: &Buf) {
        self.quantized.retain(|(other, ..)| other != buf);
    }

    /// Where a result goes as codes, if the op after it is a product that wants it quantised in a way that `can` do.
    fn codes_of(&mut self, out: &Buf, later: &[Op], can: &[Activation]) -> Result<Codes> {
        self.changed(out);
        let wanted = match later.first() {
            Some(Op::Linear { x, weight, .. }) if x == out => weight.activation,
            _ => Activation::Float,
        };
        if !can.contains(&wanted) {
            return Ok(Codes { quantize: Quantize::No, codes: 0, spans: 0, floats: out.floats.address() });
        }
        let (codes, spans) = out.quantized_row(self.planner.memory, 0, self.is_many())?;
        self.quantized.push((out.clone(), wanted, self.is_many()));
        let floats = if floats_needed(out, wanted, later) { out.floats.address() } else { 0 };
        Ok(Codes { quantize: Quantize::from_activation(wanted), codes, spans, floats })
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
        let extent = Extent::columns(table.columns, self.rows);
        let label = format!("embed {} {}", table.format, table.columns);
        self.push(|overlap| Kernel::embed(table.format, overlap), extent, &arguments, label, 0)
    }

    fn rms_norm(&mut self, out: &Buf, x: &Buf, add: Option<&Buf>, weight: &Buf, eps: f32, later: &[Op]) -> Result<()> {
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
        let label = format!("rms_norm {}", x.columns);
        let many = self.is_many();
        let kernel = |overlap| in_order(Kernel::rms_norm(codes.quantize, overlap), codes.quantize, many);
        self.push(kernel, Extent::rows(self.rows), &arguments, label, 0)
    }

    fn add(&mut self, x: &Buf, y: u64, y_pitch: usize) -> Result<()> {
        self.changed(x);
        let (columns, y_pitch) = (x.columns as u32, y_pitch as u32);
        let arguments = args::Add { x: x.floats.address(), y, columns, y_pitch };
        let extent = Extent::columns(x.columns, self.rows);
        self.push(|overlap| Kernel::plain("add", overlap), extent, &arguments, format!("add {columns}"), 0)
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
        let extent = Extent::heads(heads.query + heads.kv, self.rows);
        let label = format!("head_norm {}", heads.dim);
        self.push(|overlap| Kernel::plain("head_norm", overlap), extent, &arguments, label, 0)
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
        let format = cache.map_or(KvFormat::F32, |(cache, _)| cache.format);
        let kernel = |overlap| Kernel::rope_store_kv(table.is_some(), cache.is_some(), format, overlap);
        let extent = Extent::heads(heads.query + 2 * heads.kv, self.rows);
        self.push(kernel, extent, &arguments, format!("rope_store_kv {}", heads.dim), 0)
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
        let chunks = self.planner.shape.chunks;
        let row_bytes = (heads.query * chunks * (heads.dim + 2) * 4) as u64;
        let part = self.rows.min((PARTIALS / row_bytes) as usize).max(1);
        // A block takes one of these for the query heads of a key/value head, or for a part of them.
        let counters = part * heads.query;
        let reserved = self.planner.scratch.reserve(self.planner.memory, part as u64 * row_bytes, counters as u64)?;
        let ([partials, counters], invalidates) = reserved;
        self.plan.invalidates |= invalidates;
        let [keys, values, key_scales, value_scales] = cache.addresses(layer);
        let worth_it = heads.dim >= WORTH_A_HEAD && !self.planner.driver.facts().emulated;
        let made_for = worth_it.then_some((heads.dim as u32, heads.group() as u32));
        let many = self.is_many();
        // An imitated device compiles longer than it runs: one kernel serves all steps of several rows.
        let by_rows = rope.is_none() && (many || self.planner.driver.facts().emulated);
        let kernel = |overlap| {
            let kernel = match by_rows {
                true => Kernel::attend_rows(cache.format, codes.quantize, made_for, overlap),
                false => Kernel::attend(rope.is_some(), cache.format, codes.quantize, made_for, overlap),
            };
            in_order(kernel, codes.quantize, many)
        };
        for first in (0..self.rows).step_by(part) {
            let rows = part.min(self.rows - first);
            let (out_codes, out_spans) = match codes.quantize {
                Quantize::No => (0, 0),
                _ => out.quantized_row(self.planner.memory, first, many)?,
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
                rows: rows as u32,
            };
            let label = format!("attend {}x{}, {chunks} chunks", heads.query, heads.dim);
            let extent = if by_rows { Extent::attend_rows } else { Extent::attend };
            let extent = extent(chunks, heads.kv, heads.group(), rows);
            self.push(kernel, extent, &arguments, label, 0)?;
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
        let extent = Extent::units(out.columns, self.rows);
        let many = self.is_many();
        let kernel = |overlap| in_order(Kernel::gated(codes.quantize, overlap), codes.quantize, many);
        self.push(kernel, extent, &arguments, format!("gated {}", out.columns), 0)
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
        let extent = Extent::columns(x.columns, self.rows);
        let label = format!("select_rows {}", x.columns);
        self.push(|overlap| Kernel::plain("select_rows", overlap), extent, &arguments, label, 0)
    }

    /// The codes of a buffer's rows, made now unless they are there.
    fn quantize(&mut self, x: &Buf, activation: Activation) -> Result<(u64, u64)> {
        let (codes, spans) = x.quantized_row(self.planner.memory, 0, self.is_many())?;
        let wanted = (x.clone(), activation, self.is_many());
        if self.quantized.contains(&wanted) {
            return Ok((codes, spans));
        }
        let arguments =
            args::Quantize { x: x.floats.address(), codes, spans, columns: x.columns as u32, per: x.per() as u32 };
        let extent = match activation {
            Activation::Token => Extent::rows(self.rows),
            _ => Extent::units(x.columns, self.rows),
        };
        let (quantize, many) = (Quantize::from_activation(activation), self.is_many());
        let kernel = |overlap| in_order(Kernel::quantize(quantize, overlap), quantize, many);
        self.push(kernel, extent, &arguments, format!("quantize {}", x.columns), 0)?;
        self.changed(x);
        self.quantized.push(wanted);
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
            Target::Store(out) => (out, Epilogue::Store),
            Target::AddTo(out) => (out, Epilogue::Add),
            Target::Gated(out, _) => (out, Epilogue::Gated),
        };
        let rows = if epilogue == Epilogue::Gated { weight.rows / 2 } else { weight.rows };
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
            (arguments.out_codes, arguments.out_spans) = out.quantized_row(self.planner.memory, 0, self.is_many())?;
            (arguments.out, arguments.out_per, arguments.gate) = (made.floats, out.per() as u32, gate_constant(*gate));
        } else {
            self.changed(out);
            arguments.out = out.floats.address();
        }
        let normed = matches!(input, Input::Normed { .. });
        if !self.is_many() {
            self.gemv(weight, &arguments, normed, epilogue)
        } else {
            self.gemm(weight, &arguments, epilogue)
        }
    }
    /// A product that reads the weights once for all rows of the step.
    fn gemv(&mut self, weight: &Matrix, arguments: &args::Product, norm: bool, epilogue: Epilogue) -> Result<()> {
        let facts = self.planner.driver.facts();
        // An imitated device compiles longer than it runs: one kernel serves any few tokens.
        let tokens = if facts.emulated && self.rows > 1 { MOST_FEW_ROWS } else { self.rows.next_power_of_two() } as u32;
        let shape = (weight.rows, weight.per());
        let (rows, threads) = tile(shape, (tokens, norm, epilogue), self.planner.rows_per_thread, facts.overlaps());
        let gemv = Gemv {
            format: weight.format,
            activation: weight.activation,
            rows,
            tokens,
            epilogue,
            norm,
            // A kernel of its own for each width is worth its compilation where the matrix is large.
            per: (weight.rows * weight.columns >= WORTH_A_KERNEL && !facts.emulated).then(|| weight.per() as u32),
            threads,
        };
        let extent = gemv.launch(weight.rows, facts.multiprocessors as usize);
        let (norm, then) = (if norm { " norm" } else { "" }, then(epilogue));
        let label = format!("gemv {} {}x{}{norm}{then}", weight.format, weight.rows, weight.columns);
        self.push(|overlap| gemv.kernel(overlap), extent, arguments, label, weight.bytes())
    }

    /// The same through tensor cores, a tile of rows and tokens for each block.
    fn gemm(&mut self, weight: &Matrix, arguments: &args::Product, epilogue: Epilogue) -> Result<()> {
        let facts = self.planner.driver.facts();
        // An imitated device compiles longer than it runs.
        let tile =
            if facts.emulated { 64 } else { tile_of_many(weight.rows, self.rows, facts.multiprocessors as usize) };
        let kernel = |overlap| Kernel::gemm(weight.format, weight.activation, tile, epilogue, overlap);
        let extent = Extent::gemm(weight.rows, self.rows, tile);
        let label = format!("gemm {} {}x{}{}", weight.format, weight.rows, weight.columns, then(epilogue));
        self.push(kernel, extent, arguments, label, weight.bytes())
    }

    fn dense(&mut self, weight: &Matrix, x: &Buf, bias: u64, out: &Buf, epilogue: Epilogue) -> Result<()> {
        assert_eq!(x.columns, weight.columns, "linear: the activations' columns");
        self.changed(out);
        let arguments = args::Dense {
            weights: weight.addresses()[0],
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
        let kernel = |overlap| Kernel::dense(weight.format, epilogue, overlap);
        let extent = Extent::dense(weight.rows, self.rows);
        let label = format!("dense {} {}x{}{}", weight.format, weight.rows, weight.columns, then(epilogue));
        self.push(kernel, extent, &arguments, label, weight.bytes())
    }
}

/// Rows that a thread of a product of few tokens computes together, and threads of its block: what was fastest on an
/// H200 for the shapes of a model of 7 billion weights. Where launches overlap, few large blocks leave whole multiprocessors
/// to the next one, whose first loads are on their way before this one ends.
pub(crate) fn tile(
    shape: (usize, usize),
    (tokens, norm, epilogue): (u32, bool, Epilogue),
    asked: Option<RowsPerThread>,
    overlaps: bool,
) -> (u32, u32) {
    let (matrix_rows, per) = shape;
    let (rows, threads) = match (tokens, norm) {
        (1, true) if matrix_rows >= MANY_ROWS => (4, 256),
        (1, true) => (2, if overlaps { 448 } else { 512 }),
        // A long row has enough loads on its way, and few rows leave multiprocessors idle.
        (1, false) if per >= LONG_SEGMENT => (1, 128),
        (1, false) => (2, if overlaps { 448 } else { 128 }),
        _ => (4, 128),
    };
    let rows = asked.map_or(rows, RowsPerThread::count);
    match epilogue {
        Epilogue::Gated => {
            let rows = if asked.is_none() && tokens == 1 { 2 } else { rows };
            (rows, Gemv::gated_threads(rows))
        }
        // More rows take more registers.
        _ if rows > 2 => (rows, threads.min(256)),
        _ => (rows, threads),
    }
}

/// Rows of a matrix in a tile of a product of many tokens. The large tile reads activations half as often; but where its
/// tiles are a few more than a device takes at a time, or too few to give each multiprocessor one, small ones leave less of it
/// idle.
pub(crate) fn tile_of_many(rows: usize, tokens: usize, multiprocessors: usize) -> u32 {
    let (tiles, at_once) = (rows.div_ceil(128) * tokens.div_ceil(TOKENS), 2 * multiprocessors);
    let small = tiles < multiprocessors || (at_once + 1..2 * at_once).contains(&tiles);
    if small { 64 } else { 128 }
}

/// A kernel that quantises in the order that products of few or of many rows read.
fn in_order(kernel: Kernel, quantize: Quantize, many: bool) -> Kernel {
    if many && quantize != Quantize::No { kernel.for_gemm() } else { kernel }
}

/// What follows a product, for people.
fn then(epilogue: Epilogue) -> &'static str {
    match epilogue {
        Epilogue::Store => "",
        Epilogue::Add => " add",
        Epilogue::Gated => " gated",
    }
}

/// A launch of a kernel, which is compiled for launches that overlap where they can.
pub(crate) fn launch<A: Args>(
    driver: &Arc<dyn Driver>,
    kernel: impl Fn(bool) -> Kernel,
    extent: Extent,
    arguments: &A,
    label: String,
    bytes: u64,
) -> Result<Launch> {
    let kernel = driver.kernel(&kernel(driver.facts().overlaps()))?;
    let words = arguments.bytes().chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    Ok(Launch { kernel, extent, arguments: words.collect(), label, bytes })
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

fn gate_constant(gate: Gate) -> u32 {
    match gate {
        Gate::Silu => 0,
        Gate::Relu2 => 1,
    }
}
