// Joins the chunks of attention in order. What a product needs of out can be quantised at once. A thread has four
// columns.
requires packed_4x8_integer_dot_product;

struct Params {
    columns: u32,
    units: u32,
    // Chunks that there is room for.
    chunks: u32,
}

// Columns of a head.
override DIM: u32 = 128u;
// A scale for each block of 32 columns.
override QUANTIZE: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> batch: Batch;
// [row, head, chunk, quad + 1]: sums, then the highest score and the sum of weights.
@group(0) @binding(4) var<storage, read> chunk_sums: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

//#include batch
//#include softmax
//#include codes
//#include quantize

// What has been joined of a head's quad.
struct Joined {
    part: Part,
    sum: vec4<f32>,
}

fn joined(before: Joined, sum: vec4<f32>, last: vec4<f32>) -> Joined {
    let own = Part(last.x, last.y);
    let by = factors(before.part.highest, own.highest);
    return Joined(join(before.part, own, by), fma(before.sum, vec4(by.x), sum * by.y));
}

fn quad_of_head(row: u32, head: u32, quad: u32) -> vec4<f32> {
    let quads = (DIM + 3u) / 4u;
    let chunks = batch.row[row].z / CHUNK + 1u;
    let first = (row * (params.columns / DIM) + head) * params.chunks;
    var all = Joined(Part(-3.0e38, 0.0), vec4<f32>());
    // Four chunks are on their way at a time.
    for (var chunk = 0u; chunk < chunks; chunk += 4u) {
        let at = (vec4(first) + min(vec4(chunk) + vec4(0u, 1u, 2u, 3u), vec4(chunks - 1u))) * (quads + 1u);
        let a = chunk_sums[at.x + quad];
        let b = chunk_sums[at.y + quad];
        let c = chunk_sums[at.z + quad];
        let d = chunk_sums[at.w + quad];
        let last_a = chunk_sums[at.x + quads];
        let last_b = chunk_sums[at.y + quads];
        let last_c = chunk_sums[at.z + quads];
        let last_d = chunk_sums[at.w + quads];
        all = joined(all, a, last_a);
        if (chunk + 1u < chunks) {
            all = joined(all, b, last_b);
        }
        if (chunk + 2u < chunks) {
            all = joined(all, c, last_c);
        }
        if (chunk + 3u < chunks) {
            all = joined(all, d, last_d);
        }
    }
    return all.sum * (1.0 / all.part.total);
}

fn column_of(row: u32, column: u32) -> f32 {
    if (column >= params.columns) {
        return 0.0;
    }
    let i = column % DIM;
    return quad_of_head(row, column / DIM, i / 4u)[i % 4u];
}

// Four columns of the row; 0 past the last.
fn four_of(row: u32, quad: u32) -> vec4<f32> {
    let at = 4u * quad;
    if (DIM % 4u != 0u) {
        // They may be of two heads.
        return vec4(column_of(row, at), column_of(row, at + 1u), column_of(row, at + 2u), column_of(row, at + 3u));
    }
    if (at >= params.columns) {
        return vec4<f32>();
    }
    return quad_of_head(row, at / DIM, at % DIM / 4u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let quad = group.x * 256u + thread;
    let four = four_of(row, quad);
    for (var i = 0u; i < 4u && 4u * quad + i < params.columns; i++) {
        out[row * params.columns + 4u * quad + i] = four[i];
    }
    if (QUANTIZE) {
        quantize_block(row, quad, params.units, four, thread);
    }
}
