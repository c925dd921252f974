// out = gate(g) · u for one token, where [g | u] = W · x: linear.wgsl and gated.wgsl in one, with the same sums. A
// workgroup has 32 columns of out, so 32 rows of g and the 32 of u that go with them, tile by tile. What a product
// needs of out can be quantised at once.
requires packed_4x8_integer_dot_product;

struct Params {
    units: u32,
    units_per_segment: u32,
    // Columns of out, in whole blocks of 32; rows of u begin here.
    stride: u32,
}

// A scale for each block of 32 columns.
override QUANTIZE: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> out_codes: array<u32>;
@group(0) @binding(7) var<storage, read_write> out_spans: array<vec2<f32>>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;

//#include weights
//#include FORMAT
//#include activations
//#include one_token
//#include products
//#include gate
//#include codes

// [tile of the 32 rows, thread]: of g and u.
var<workgroup> sums: array<vec2<f32>, 1024>;
// The block's columns, and the sums of their codes by fours.
var<workgroup> columns: array<vec4<f32>, 8>;
var<workgroup> code_sums: array<vec4<i32>, 2>;

// A thread's segment of a row.
fn segment_sum(tile: u32, lane: u32, segment: u32) -> f32 {
    var sum = 0.0;
    let start = segment * params.units_per_segment;
    let end = min(start + params.units_per_segment, params.units);
    for (var unit = start; unit < end; unit++) {
        let w = load_unit(first_piece(tile, lane, unit));
        let scale = unit_scales(tile, lane, unit);
        let zero = unit_zeros(tile, lane, unit);
        sum = add_unit(sum, load_inputs(0u, unit), blocks_of(w), scale, zero);
    }
    return sum;
}

// One column of out: the segments in order, then the gate.
fn column_of(column: u32, thread: u32) -> f32 {
    let first = thread / TILE * 256u + thread % TILE;
    var total = vec2<f32>();
    for (var at = first; at < first / 256u * 256u + 256u; at += 4u * TILE) {
        total += sums[at];
        total += sums[at + TILE];
        total += sums[at + 2u * TILE];
        total += sums[at + 3u * TILE];
    }
    if (!SCALED) {
        let by = token_scale(0u);
        total.x = finish(total.x, bitcast<f32>(scales[column]), by);
        total.y = finish(total.y, bitcast<f32>(scales[params.stride + column]), by);
    }
    return gate(total.x) * total.y;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var part = 0u; part < 32u / TILE; part++) {
        let tile = group.x * (32u / TILE) + part;
        let g = segment_sum(tile, thread % TILE, thread / TILE);
        let u = segment_sum(tile + params.stride / TILE, thread % TILE, thread / TILE);
        sums[part * 256u + thread] = vec2(g, u);
    }
    workgroupBarrier();
    if (thread < 32u) {
        let column = group.x * 32u + thread;
        let value = column_of(column, thread);
        store(0u, column, value);
        columns[thread / 4u][thread % 4u] = value;
    }
    if (!QUANTIZE) {
        return;
    }
    workgroupBarrier();
    let low = max(max(size(0u), size(1u)), max(size(2u), size(3u)));
    let high = max(max(size(4u), size(5u)), max(size(6u), size(7u)));
    let four = max(low, high);
    // One thread divides for the scale, the others for the codes.
    let is_inverse = thread != 31u;
    let by = span_half(max(max(four.x, four.y), max(four.z, four.w)), is_inverse);
    if (thread < 8u) {
        let word = code4(columns[thread], by);
        out_codes[group.x * 8u + thread] = word;
        code_sums[thread / 4u][thread % 4u] = sum4(word);
    }
    workgroupBarrier();
    if (thread == 31u) {
        let sum = code_sums[0] + code_sums[1];
        out_spans[group.x] = vec2(by, f32(sum.x + sum.y + sum.z + sum.w));
    }
}

fn size(quad: u32) -> vec4<u32> {
    return bitcast<vec4<u32>>(columns[quad]) & vec4(0x7fffffffu);
}
