// Joins the chunks of attention in order. What a product needs of out can be quantised at once.
requires packed_4x8_integer_dot_product;

struct Params {
    columns: u32,
    units: u32,
    dim: u32,
    chunks: u32,
}

// A scale for each block of 32 columns.
override QUANTIZE: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> batch: Batch;
// [row, head, chunk, dim + 2]: sums, the highest score, the sum of weights.
@group(0) @binding(4) var<storage, read> chunk_sums: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

//#include batch
//#include softmax
//#include codes
//#include quantize

fn column_of(row: u32, column: u32) -> f32 {
    if (column >= params.columns) {
        return 0.0;
    }
    let heads = params.columns / params.dim;
    let first = (row * heads + column / params.dim) * params.chunks;
    let chunks = batch.row[row].z / CHUNK + 1u;
    var part = Part(-3.0e38, 0.0);
    var sum = 0.0;
    for (var chunk = 0u; chunk < chunks; chunk++) {
        let at = (first + chunk) * (params.dim + 2u);
        let own = Part(chunk_sums[at + params.dim], chunk_sums[at + params.dim + 1u]);
        let by = factors(part.highest, own.highest);
        part = join(part, own, by);
        sum = fma(sum, by.x, chunk_sums[at + column % params.dim] * by.y);
    }
    let value = sum / part.total;
    out[row * params.columns + column] = value;
    return value;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let quad = group.x * 256u + thread;
    let at = 4u * quad;
    let four = vec4(column_of(row, at), column_of(row, at + 1u), column_of(row, at + 2u), column_of(row, at + 3u));
    if (QUANTIZE) {
        quantize_block(row, quad, params.units, four, thread);
    }
}
