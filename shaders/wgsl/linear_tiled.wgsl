// out = W · x for many tokens: a workgroup has 64 rows by 64 tokens, a thread 4 by 4 of them. Codes pass
// through workgroup memory, 64 columns at a time; the next are loaded while these are multiplied. Sums are
// formed in the order of linear.wgsl, so that a token's result is the same bits.
requires packed_4x8_integer_dot_product;

struct Params {
    units: u32,
    units_per_segment: u32,
    first_row: u32,
    rows: u32,
    stride: u32,
}

override BIAS: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(7) var<storage, read> bias: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;

alias Values = vec4<f32>;

//#include batch
//#include weights
//#include FORMAT
//#include activations
//#include products

// [column / 16, row or token].
var<workgroup> w_codes: array<vec4<u32>, 256>;
var<workgroup> x_codes: array<vec4<u32>, 256>;
// [block, row]: scale and zero. [block, token]: scale and sum.
var<workgroup> w_scales: array<vec2<f32>, 128>;
var<workgroup> x_spans: array<vec2<f32>, 128>;

// What a thread brings to workgroup memory: four vectors of 16 codes of one token, or a block of one row.
struct Load {
    block: Block,
    scale: vec2<f32>,
    activation: vec4<u32>,
    span: vec2<f32>,
}

// half: counts 64 columns. Threads 0 to 127 bring weights, 128 to 255 bring spans, all bring activations.
fn load(row: u32, token: u32, half: u32, thread: u32) -> Load {
    var l: Load;
    let unit = half / 2u;
    let last = batch.count.x - 1u;
    if (thread < 128u) {
        let tile = min((row + thread % 64u) / TILE, (params.rows - 1u) / TILE);
        let lane = thread % TILE;
        let b = 2u * (half % 2u) + thread / 64u;
        l.block = block(first_piece(tile, lane, unit), b);
        l.scale = vec2(unit_scales(tile, lane, unit)[b], unit_zeros(tile, lane, unit)[b]);
    } else {
        let at = min(token + thread % 64u, last) * 4u * params.units + 2u * half + thread / 64u - 2u;
        l.span = spans[at];
    }
    l.activation = activations[min(token + thread / 4u, last) * 8u * params.units + 4u * half + thread % 4u];
    return l;
}

fn keep(l: Load, thread: u32) {
    if (thread < 128u) {
        let at = thread / 64u * 128u + thread % 64u;
        w_codes[at] = l.block.low;
        w_codes[at + 64u] = l.block.high;
        w_scales[thread] = l.scale;
    } else {
        x_spans[thread - 128u] = l.span;
    }
    x_codes[thread % 4u * 64u + thread / 4u] = l.activation;
}

fn dots(x: vec4<u32>, a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32>) -> vec4<i32> {
    return vec4(dot16(x, a), dot16(x, b), dot16(x, c), dot16(x, d));
}

fn add_block(sum: Values, dots: vec4<i32>, span: vec2<f32>, scale: Values, zero: Values) -> Values {
    return add_product(sum, weigh(Values(dots), Values(span.y), scale, zero), Values(span.x));
}

// One token's four rows, 16 apart.
fn store(token: u32, row: u32, sum: Values) {
    if (token >= batch.count.x) {
        return;
    }
    for (var i = 0u; i < 4u; i++) {
        let at = row + 16u * i;
        if (at < params.rows) {
            var value = sum[i];
            if (!SCALED) {
                let both = Values(bitcast<f32>(scales[at]), spans[token * 4u * params.units].x, 0.0, 0.0);
                value = finish(Values(value), both.xxxx, both.yyyy).x;
            }
            if (BIAS) {
                value += bias[params.first_row + at];
            }
            out[token * params.stride + params.first_row + at] = value;
        }
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * 64u;
    let token = group.x * 64u;
    let x = thread % 16u;
    let y = thread / 16u;
    // A segment's sums and the whole's, of four tokens.
    var s0 = Values();
    var s1 = Values();
    var s2 = Values();
    var s3 = Values();
    var t0 = Values();
    var t1 = Values();
    var t2 = Values();
    var t3 = Values();
    let halves = 2u * params.units;
    var next = load(row, token, 0u, thread);
    for (var half = 0u; half < halves; half++) {
        keep(next, thread);
        workgroupBarrier();
        next = load(row, token, min(half + 1u, halves - 1u), thread);
        for (var b = 0u; b < 2u; b++) {
            var d0 = vec4<i32>();
            var d1 = vec4<i32>();
            var d2 = vec4<i32>();
            var d3 = vec4<i32>();
            for (var k = 128u * b; k < 128u * b + 128u; k += 64u) {
                let wa = w_codes[k + x];
                let wb = w_codes[k + x + 16u];
                let wc = w_codes[k + x + 32u];
                let wd = w_codes[k + x + 48u];
                d0 += dots(x_codes[k + y], wa, wb, wc, wd);
                d1 += dots(x_codes[k + y + 16u], wa, wb, wc, wd);
                d2 += dots(x_codes[k + y + 32u], wa, wb, wc, wd);
                d3 += dots(x_codes[k + y + 48u], wa, wb, wc, wd);
            }
            let at = 64u * b;
            let sa = w_scales[at + x];
            let sb = w_scales[at + x + 16u];
            let sc = w_scales[at + x + 32u];
            let sd = w_scales[at + x + 48u];
            let scale = vec4(sa.x, sb.x, sc.x, sd.x);
            let zero = vec4(sa.y, sb.y, sc.y, sd.y);
            s0 = add_block(s0, d0, x_spans[at + y], scale, zero);
            s1 = add_block(s1, d1, x_spans[at + y + 16u], scale, zero);
            s2 = add_block(s2, d2, x_spans[at + y + 32u], scale, zero);
            s3 = add_block(s3, d3, x_spans[at + y + 48u], scale, zero);
        }
        if ((half + 1u) % (2u * params.units_per_segment) == 0u || half + 1u == halves) {
            t0 += s0;
            t1 += s1;
            t2 += s2;
            t3 += s3;
            s0 = Values();
            s1 = Values();
            s2 = Values();
            s3 = Values();
        }
        workgroupBarrier();
    }
    store(token + y, row + x, t0);
    store(token + y + 16u, row + x, t1);
    store(token + y + 32u, row + x, t2);
    store(token + y + 48u, row + x, t3);
}
