//! From ops to dispatches.
//!
//! Neighbours share a dispatch: a norm, a gate or attention's last part with the quantisation of its output for
//! the product that follows; a product with the bias that is added to it; and for one row, a product with the gate of
//! its halves, RoPE and the store of keys and values with attention. They compute what they would have computed apart.

use trine_backend::recorded::{Shape, is_needed};
use trine_backend::{Activation, Error, Format, Gate, Group, Heads, Result, ZeroKind};
use trine_shaders::{Codes, Reduce, Shader, Tokens, Width};

use crate::buffers::Buffer;
use crate::device::Device;
use crate::kv::{Cache, cache_constant};
use crate::op::{Buf, Op, Shared};
use crate::pipelines::{Dispatch, Pipelines, Variant};
use crate::weights::{Matrix, Part};

/// Positions of a chunk of attention, as in `softmax.wgsl`.
pub(crate) const CHUNK: usize = 64;
/// Up to so many chunks, one workgroup takes them all: the join of a split is a dispatch of its own.
const MOST_SERIAL_CHUNKS: usize = 4;
/// Up to so many rows, attention splits the context over workgroups.
const MOST_SPLIT_ROWS: usize = 16;
/// Heads of a workgroup of attention, as `attend.wgsl` has room for; up to so many heads in all, each has a workgroup of
/// its own.
const MOST_HEADS: usize = 8;
const MOST_LONE_HEADS: usize = 256;
/// Up to so many rows, a product reads the weights once for every four.
const MOST_FEW_ROWS: usize = 16;
/// Rows and tokens of a tile of `linear_tiled.wgsl`.
const TILED: usize = 64;

/// Turns ops into dispatches, in order.
pub(crate) struct Planner<'a> {
    pub(crate) device: &'a Device,
    pub(crate) pipelines: &'a mut Pipelines,
    /// The step's rows, and those that were selected.
    pub(crate) batches: &'a [wgpu::Buffer; 2],
    /// Sums of attention's chunks.
    pub(crate) chunk_sums: &'a mut Option<wgpu::Buffer>,
    pub(crate) shape: Shape,
    /// The rows that ops work on now.
    rows: usize,
    selected: bool,
    /// Buffers whose codes are those of their floats.
    quantized: Vec<(Buf, Activation)>,
    dispatches: Vec<Dispatch>,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        device: &'a Device,
        pipelines: &'a mut Pipelines,
        batches: &'a [wgpu::Buffer; 2],
        chunk_sums: &'a mut Option<wgpu::Buffer>,
        shape: Shape,
    ) -> Self {
        Planner {
            device,
            pipelines,
            batches,
            chunk_sums,
            shape,
            rows: shape.rows,
            selected: false,
            quantized: Vec::new(),
            dispatches: Vec::new(),
        }
    }

    pub(crate) fn plan(mut self, ops: &[Op]) -> Result<Vec<Dispatch>> {
        let mut at = 0;
        while at < ops.len() {
            at += self.op(&ops[at], &ops[at + 1..])?;
        }
        Ok(self.dispatches)
    }

    /// Plans one op, and the next one too if both share a dispatch; returns how many it planned.
    fn op(&mut self, op: &Op, later: &[Op]) -> Result<usize> {
        let next = later.first();
        match op {
            Op::Embed { out, table } => self.embed(out, table),
            Op::RmsNorm { out, x, add, weight, eps } => {
                let quantize = wanted(out, next);
                self.rms_norm(out, x, add.as_ref(), weight, *eps, quantize)?;
            }
            Op::Linear { out, x, weight } => {
                let bias = match next {
                    Some(Op::AddBias { x, bias }) if x == out => Some(bias),
                    _ => None,
                };
                if let Some(Op::Gated { out: gated, gate_up, gate }) = next
                    && gate_up == out
                    && self.gates_alone(gate_up, weight, &later[1..])
                {
                    let quantize = wanted(gated, later.get(1)) == Some(Activation::Block);
                    self.linear_gated(gated, x, weight, *gate, quantize)?;
                    return Ok(2);
                }
                self.linear(out, x, weight, bias)?;
                return Ok(if bias.is_some() { 2 } else { 1 });
            }
            Op::AddBias { x, bias } => {
                self.columns(Shader::AddBias, x.columns, self.rows, &[&x.floats, &bias.floats]);
                self.changed(x);
            }
            Op::Add { x, y } => {
                self.columns(Shader::Add, x.columns, self.rows, &[&x.floats, &y.floats]);
                self.changed(x);
            }
            Op::HeadNorm { qkv, heads, query, key, eps } => self.head_norm(qkv, *heads, query, key, *eps),
            Op::RopeStoreKv { qkv, heads, table: Some(table), cache: Some((cache, layer)) }
                if self.rotates_alone(qkv, *heads, (cache, *layer), later) =>
            {
                if let Some(Op::Attend { out, .. }) = next {
                    let quantize = wanted(out, later.get(1)) == Some(Activation::Block);
                    self.attend(out, qkv, cache, *layer, *heads, Some(table), quantize)?;
                }
                return Ok(2);
            }
            Op::RopeStoreKv { qkv, heads, table, cache } => {
                self.rope_store_kv(qkv, *heads, table.as_ref(), cache.as_ref());
            }
            Op::Attend { out, qkv, cache, layer, heads } => {
                let quantize = wanted(out, next) == Some(Activation::Block);
                self.attend(out, qkv, cache, *layer, *heads, None, quantize)?;
            }
            Op::Gated { out, gate_up, gate } => {
                let quantize = wanted(out, next) == Some(Activation::Block);
                self.gated(out, gate_up, *gate, quantize)?;
            }
            Op::SelectOutputs { out, x } => {
                let batch = &self.batches[0];
                self.rows = self.shape.outputs;
                self.columns(Shader::SelectOutputs, x.columns, self.rows, &[batch, &x.floats, &out.floats]);
                self.changed(out);
                self.selected = true;
            }
            Op::Discard { .. } => {}
        }
        Ok(1)
    }

    fn push(&mut self, variant: Variant, params: Vec<u32>, buffers: &[&wgpu::Buffer], workgroups: [usize; 3]) {
        if !workgroups.contains(&0) {
            self.dispatches.push(self.pipelines.dispatch(self.device, variant, params, buffers, workgroups));
        }
    }

    /// A shader whose threads have a column each.
    fn columns(&mut self, shader: Shader, columns: usize, rows: usize, buffers: &[&wgpu::Buffer]) {
        self.push((shader, Vec::new()), vec![columns as u32], buffers, [columns.div_ceil(256), rows, 1]);
    }

    fn batch(&self) -> &'a wgpu::Buffer {
        &self.batches[usize::from(self.selected && self.shape.outputs < self.shape.rows)]
    }

    fn reduce(&self) -> Reduce {
        if self.device.subgroups { Reduce::Subgroup } else { Reduce::Workgroup }
    }

    fn changed(&mut self, buf: &Buf) {
        self.quantized.retain(|(other, _)| other != buf);
    }

    fn embed(&mut self, out: &Buf, table: &Matrix) {
        for part in &table.parts {
            let params = [table.units(), part.first_row, part.rows, table.columns].map(|x| x as u32).to_vec();
            let workgroups = [table.columns.div_ceil(256), self.rows, 1];
            let batch = self.batch();
            match codes(table.format) {
                Some(codes) => {
                    let (scales, zeros) = scales_of(part);
                    let buffers = [batch, &part.codes, scales, zeros, &out.floats];
                    self.push((Shader::Embed(codes), constants(table)), params, &buffers, workgroups);
                }
                None => {
                    let buffers = [batch, &part.codes, &out.floats];
                    self.push((Shader::EmbedDense, constants(table)), params, &buffers, workgroups);
                }
            }
        }
        self.changed(out);
    }

    fn rms_norm(
        &mut self,
        out: &Buf,
        x: &Buf,
        add: Option<&Buf>,
        weight: &Buf,
        eps: f32,
        quantize: Option<Activation>,
    ) -> Result<()> {
        let mut constants = vec![("ADD", u32::from(add.is_some()))];
        constants.push((
            "QUANTIZE",
            match quantize {
                None | Some(Activation::Float) => 0,
                Some(Activation::Token) => 1,
                Some(Activation::Block) => 2,
            },
        ));
        constants.push(("COLUMNS", x.columns as u32));
        let params = vec![eps.to_bits()];
        let [codes, spans] = self.codes_of(out, quantize.is_some())?;
        // A buffer can't be bound twice where one use writes: without an addition, any other stands for y.
        let y = add.unwrap_or(weight);
        let buffers = [codes, spans, &x.floats, &y.floats, &weight.floats, &out.floats];
        let width = if x.columns.is_multiple_of(4) { Width::Four } else { Width::One };
        self.push((Shader::RmsNorm(self.reduce(), width), constants), params, &buffers, [self.rows, 1, 1]);
        self.changed(out);
        if add.is_some() {
            self.changed(x);
        }
        self.now_quantized(out, quantize);
        Ok(())
    }

    /// Where a buffer's codes and scales are written, if they are.
    fn codes_of<'b>(&self, buf: &'b Buffer, written: bool) -> Result<[&'b wgpu::Buffer; 2]>
    where
        'a: 'b,
    {
        if !written {
            let [codes, spans, _] = self.device.unused();
            return Ok([codes, spans]);
        }
        let quantized = buf.quantized(self.device)?;
        Ok([&quantized.codes, &quantized.spans])
    }

    fn now_quantized(&mut self, buf: &Buf, activation: Option<Activation>) {
        self.changed(buf);
        self.quantized.extend(activation.map(|activation| (buf.clone(), activation)));
    }

    fn quantize(&mut self, x: &Buf, activation: Activation) -> Result<()> {
        if self.quantized.iter().any(|(buf, has)| buf == x && *has == activation) {
            return Ok(());
        }
        let [codes, spans] = self.codes_of(x, true)?;
        let params = vec![x.columns as u32, x.units() as u32];
        let buffers = [codes, spans, &x.floats];
        match activation {
            Activation::Token => {
                let shader = Shader::QuantizeToken(self.reduce());
                self.push((shader, Vec::new()), params, &buffers, [self.rows, 1, 1]);
            }
            _ => {
                let workgroups = [(32 * x.units()).div_ceil(256), self.rows, 1];
                self.push((Shader::QuantizeBlock, Vec::new()), params, &buffers, workgroups);
            }
        }
        self.now_quantized(x, Some(activation));
        Ok(())
    }

    fn linear(&mut self, out: &Buf, x: &Buf, weight: &Shared<Matrix>, bias: Option<&Buf>) -> Result<()> {
        assert!(x.columns == weight.columns && out.columns == weight.rows, "linear: shapes do not fit");
        self.changed(out);
        let Some(codes) = codes(weight.format) else {
            self.linear_dense(out, x, weight, bias);
            return Ok(());
        };
        self.quantize(x, weight.activation)?;
        let quantized = x.quantized(self.device)?;
        for part in &weight.parts {
            let mut constants = constants(weight);
            constants.push(("BIAS", u32::from(bias.is_some())));
            let params =
                [weight.units(), weight.units_per_segment(), part.first_row, part.rows, out.columns].map(|x| x as u32);
            let (scales, zeros) = scales_of(part);
            let bias = bias.map_or(scales, |bias| &bias.floats);
            let buffers =
                [self.batch(), &part.codes, scales, zeros, &quantized.codes, &quantized.spans, bias, &out.floats];
            let tiles = part.rows.div_ceil(weight.tile);
            let (shader, workgroups) = match self.rows {
                0 | 1 => (Shader::Linear(codes, Tokens::One), [tiles, self.rows, 1]),
                2..=MOST_FEW_ROWS => (Shader::Linear(codes, Tokens::Four), [tiles, self.rows.div_ceil(4), 1]),
                rows => (Shader::LinearTiled(codes), [rows.div_ceil(TILED), part.rows.div_ceil(TILED), 1]),
            };
            self.push((shader, constants), params.to_vec(), &buffers, workgroups);
        }
        Ok(())
    }

    /// Whether a product can apply the gate to its rows itself: for a step of one row, if nobody can look at them.
    fn gates_alone(&self, gate_up: &Buf, weight: &Matrix, later: &[Op]) -> bool {
        let halves = weight.rows.is_multiple_of(64) && weight.parts.len() == 1;
        let fits = self.rows == 1 && codes(weight.format).is_some() && halves;
        fits && !is_needed(gate_up, later)
    }

    fn linear_gated(&mut self, out: &Buf, x: &Buf, weight: &Shared<Matrix>, gate: Gate, quantize: bool) -> Result<()> {
        assert!(x.columns == weight.columns && 2 * out.columns == weight.rows, "linear: shapes do not fit");
        let (Some(codes), [part]) = (codes(weight.format), weight.parts.as_slice()) else {
            return Err(Error::Device("a product that can't apply the gate was asked to".into()));
        };
        self.quantize(x, weight.activation)?;
        let quantized = x.quantized(self.device)?;
        let [out_codes, out_spans] = self.codes_of(out, quantize)?;
        let (scales, zeros) = scales_of(part);
        let mut constants = constants(weight);
        constants.extend([("RELU2", u32::from(gate == Gate::Relu2)), ("QUANTIZE", u32::from(quantize))]);
        let params = [weight.units(), weight.units_per_segment(), out.columns].map(|x| x as u32).to_vec();
        let inputs = [&quantized.codes, &quantized.spans];
        let buffers = [out_codes, &part.codes, scales, zeros, inputs[0], inputs[1], out_spans, &out.floats];
        self.push((Shader::LinearGated(codes), constants), params, &buffers, [out.columns / 32, 1, 1]);
        self.now_quantized(out, quantize.then_some(Activation::Block));
        Ok(())
    }

    fn linear_dense(&mut self, out: &Buf, x: &Buf, weight: &Matrix, bias: Option<&Buf>) {
        for part in &weight.parts {
            let mut constants = constants(weight);
            constants.push(("BIAS", u32::from(bias.is_some())));
            let shape = [weight.units(), weight.units_per_segment(), part.first_row, part.rows];
            let params = [shape.as_slice(), &[out.columns, weight.columns]].concat();
            let params = params.into_iter().map(|x| x as u32).collect();
            let bias = bias.map_or(&x.floats, |bias| &bias.floats);
            let buffers = [self.batch(), &part.codes, &x.floats, bias, &out.floats];
            let workgroups = [part.rows.div_ceil(weight.tile), self.rows.div_ceil(4), 1];
            self.push((Shader::LinearDense, constants), params, &buffers, workgroups);
        }
    }

    fn head_norm(&mut self, qkv: &Buf, heads: Heads, query: &Buf, key: &Buf, eps: f32) {
        let params = vec![heads.dim as u32, heads.query as u32, heads.fused_width() as u32, eps.to_bits()];
        let buffers = [&qkv.floats, &query.floats, &key.floats];
        let workgroups = [heads.query + heads.kv, self.rows, 1];
        self.push((Shader::HeadNorm(self.reduce()), Vec::new()), params, &buffers, workgroups);
        self.changed(qkv);
    }

    fn rope_store_kv(&mut self, qkv: &Buf, heads: Heads, table: Option<&Buf>, cache: Option<&(Shared<Cache>, usize)>) {
        let format = cache.map_or(0, |(cache, _)| cache_constant(cache.format));
        let flags = [("ROPE", table.is_some()), ("STORE", cache.is_some())];
        let mut constants: Vec<_> = flags.into_iter().map(|(name, set)| (name, u32::from(set))).collect();
        constants.push(("CACHE", format));
        let (context, vectors) = cache.map_or((0, 0), |(cache, _)| (cache.context, cache.vectors()));
        let params = [heads.dim, heads.query, heads.kv, context, vectors].map(|x| x as u32).to_vec();
        let table = table.map_or(self.batch(), |table| &table.floats);
        let workgroups = [heads.query + 2 * heads.kv, self.rows, 1];
        match cache {
            Some((cache, layer)) => {
                let layer = &cache.layers[*layer];
                let buffers = [self.batch(), &qkv.floats, table, &layer.vectors, &layer.scales];
                self.push((Shader::RopeStoreKv, constants), params, &buffers, workgroups);
            }
            None => {
                let [vectors, scales, _] = self.device.unused();
                let buffers = [self.batch(), &qkv.floats, table, vectors, scales];
                self.push((Shader::RopeStoreKv, constants), params, &buffers, workgroups);
            }
        }
        self.changed(qkv);
    }

    /// Whether attention can do RoPE and the store of keys and values itself: for a step of one row, whose rotated
    /// vectors nobody can look at.
    fn rotates_alone(&self, qkv: &Buf, heads: Heads, cache: (&Shared<Cache>, usize), later: &[Op]) -> bool {
        let Some((Op::Attend { out: _, qkv: read, cache: kv, layer, heads: shape }, rest)) = later.split_first() else {
            return false;
        };
        let same = read == qkv && kv == cache.0 && *layer == cache.1 && *shape == heads;
        let fits = self.rows == 1 && !self.selected && heads.dim.is_multiple_of(8);
        same && fits && !is_needed(qkv, rest)
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
        quantize: bool,
    ) -> Result<()> {
        let chunks = self.shape.chunks;
        let bytes = (self.rows * heads.query * chunks * (heads.dim.next_multiple_of(4) + 4) * 4) as u64;
        let split = chunks > MOST_SERIAL_CHUNKS && self.rows <= MOST_SPLIT_ROWS && bytes <= self.device.binding_limit;
        if split {
            self.reserve_chunk_sums(bytes)?;
        }
        let parts = if split { chunks } else { 1 };
        let each = if self.rows * heads.query * parts <= MOST_LONE_HEADS { 1 } else { MOST_HEADS };
        let mut params = [cache.context, cache.vectors(), chunks].map(|x| x as u32).to_vec();
        params.push((1.0 / (heads.dim as f64).sqrt() as f32).to_bits());
        params.push(heads.group() as u32);
        let quantize_here = quantize && !split && heads.dim.is_multiple_of(32) && heads.dim <= 128;
        let [codes, spans] = self.codes_of(out, quantize_here)?;
        let flags = [("SPLIT", split), ("QUANTIZE", quantize_here), ("ROPE", rope.is_some())];
        let mut constants: Vec<_> = flags.into_iter().map(|(name, set)| (name, u32::from(set))).collect();
        constants.push(("CACHE", cache_constant(cache.format)));
        constants.extend(
            [("DIM", heads.dim), ("QUERY_HEADS", heads.query), ("KV_HEADS", heads.kv), ("HEADS", each)]
                .map(|(n, x)| (n, x as u32)),
        );
        let layer = &cache.layers[layer];
        let sums = self.chunk_sums.clone().filter(|_| split);
        let target = sums.as_ref().unwrap_or(&out.floats);
        let angles = rope.map_or(self.batch(), |table| &table.floats);
        let buffers = [codes, spans, self.batch(), &qkv.floats, &layer.vectors, &layer.scales, target, angles];
        let workgroups = [parts, heads.kv * heads.group().div_ceil(each), self.rows];
        let width = if heads.dim.is_multiple_of(4) { Width::Four } else { Width::One };
        self.push((Shader::Attend(width), constants), params, &buffers, workgroups);
        self.now_quantized(out, quantize_here.then_some(Activation::Block));
        if let Some(sums) = &sums {
            self.combine(out, sums, heads.dim, quantize)?;
        }
        Ok(())
    }

    fn combine(&mut self, out: &Buf, sums: &wgpu::Buffer, dim: usize, quantize: bool) -> Result<()> {
        let params = [out.columns, out.units(), self.shape.chunks].map(|x| x as u32).to_vec();
        let [codes, spans] = self.codes_of(out, quantize)?;
        let buffers = [codes, spans, self.batch(), sums, &out.floats];
        let workgroups = [(32 * out.units()).div_ceil(256), self.rows, 1];
        let constants = vec![("DIM", dim as u32), ("QUANTIZE", u32::from(quantize))];
        self.push((Shader::AttendCombine, constants), params, &buffers, workgroups);
        self.now_quantized(out, quantize.then_some(Activation::Block));
        Ok(())
    }

    fn gated(&mut self, out: &Buf, gate_up: &Buffer, gate: Gate, quantize: bool) -> Result<()> {
        let params = vec![out.columns as u32, out.units() as u32];
        let [codes, spans] = self.codes_of(out, quantize)?;
        let buffers = [codes, spans, &gate_up.floats, &out.floats];
        let workgroups = [(32 * out.units()).div_ceil(256), self.rows, 1];
        let constants = vec![("RELU2", u32::from(gate == Gate::Relu2)), ("QUANTIZE", u32::from(quantize))];
        self.push((Shader::Gated, constants), params, &buffers, workgroups);
        self.now_quantized(out, quantize.then_some(Activation::Block));
        Ok(())
    }

    fn reserve_chunk_sums(&mut self, bytes: u64) -> Result<()> {
        if self.chunk_sums.as_ref().is_none_or(|buffer| buffer.size() < bytes) {
            *self.chunk_sums = Some(self.device.storage("sums of attention", bytes)?);
        }
        Ok(())
    }
}

/// How `out` must be quantised for the op that comes next, if that is a product with it.
fn wanted(out: &Buf, next: Option<&Op>) -> Option<Activation> {
    match next {
        Some(Op::Linear { x, weight, .. }) if x == out => Some(weight.activation).filter(|&a| a != Activation::Float),
        _ => None,
    }
}

/// The shaders' kind of codes; `None` for floats.
fn codes(format: Format) -> Option<Codes> {
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => None,
        Format::Ternary => Some(Codes::Ternary),
        Format::Int4 { .. } => Some(Codes::Int4),
        Format::Int8 { .. } => Some(Codes::Int8),
    }
}

/// The `override` constants that say how a matrix is laid out.
fn constants(matrix: &Matrix) -> Vec<(&'static str, u32)> {
    let mut constants = format_constants(matrix.format);
    constants.push(("TILE", matrix.tile as u32));
    constants
}

fn format_constants(format: Format) -> Vec<(&'static str, u32)> {
    let blocks = |group| match group {
        Group::G32 => 1,
        Group::G64 => 2,
        Group::G128 => 4,
        Group::Row => 0,
    };
    match format {
        Format::F32 => vec![("FLOAT", 0)],
        Format::F16 => vec![("FLOAT", 1)],
        Format::Bf16 => vec![("FLOAT", 2)],
        Format::Ternary => Vec::new(),
        Format::Int8 { group } => vec![("GROUP", blocks(group))],
        Format::Int4 { group, zero } => {
            let zero = match zero {
                ZeroKind::Symmetric => 1,
                ZeroKind::Point => 2,
                ZeroKind::Min => 3,
            };
            vec![("GROUP", blocks(group)), ("ZERO", zero)]
        }
    }
}

/// A part's scales and zeros; what it does without is stood for by what it has.
fn scales_of(part: &Part) -> (&wgpu::Buffer, &wgpu::Buffer) {
    let scales = part.scales.as_ref().unwrap_or(&part.codes);
    (scales, part.zeros.as_ref().unwrap_or(scales))
}
