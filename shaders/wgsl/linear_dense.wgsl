// out = W · x with floats on both sides, four tokens at a time; tiles and segments as in linear.wgsl.
struct Params {
    units: u32,
    units_per_segment: u32,
    first_row: u32,
    rows: u32,
    stride: u32,
    columns: u32,
}

override BIAS: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

//#include batch
//#include dense

var<workgroup> sums: array<vec4<f32>, 256>;

// A column of four tokens; 0 past the last column.
fn column_of(tokens: vec4<u32>, column: u32) -> vec4<f32> {
    if (column >= params.columns) {
        return vec4(0.0);
    }
    let at = tokens * params.columns + column;
    return vec4(x[at.x], x[at.y], x[at.z], x[at.w]);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % TILE;
    let segment = thread / TILE;
    let tile = group.x;
    let token = 4u * group.y;
    let tokens = min(vec4(token) + vec4(0u, 1u, 2u, 3u), vec4(batch.count.x - 1u));
    var sum = vec4(0.0);
    let end = min((segment + 1u) * params.units_per_segment, params.units);
    for (var unit = segment * params.units_per_segment; unit < end; unit++) {
        for (var at = 0u; at < 32u; at++) {
            let w = quad(tile, lane, unit, at);
            let column = unit * 128u + at * 4u;
            sum = fma(w.xxxx, column_of(tokens, column), sum);
            sum = fma(w.yyyy, column_of(tokens, column + 1u), sum);
            sum = fma(w.zzzz, column_of(tokens, column + 2u), sum);
            sum = fma(w.wwww, column_of(tokens, column + 3u), sum);
        }
    }
    sums[thread] = sum;
    workgroupBarrier();
    let row = tile * TILE + lane;
    if (segment > 0u || row >= params.rows) {
        return;
    }
    var total = vec4(0.0);
    for (var at = 0u; at * params.units_per_segment < params.units; at++) {
        total += sums[at * TILE + lane];
    }
    if (BIAS) {
        total += bias[params.first_row + row];
    }
    for (var i = 0u; i < min(4u, batch.count.x - token); i++) {
        out[(token + i) * params.stride + params.first_row + row] = total[i];
    }
}
