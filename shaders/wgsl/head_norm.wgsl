// RMSNorm of each query head with query and of each key head with key, in place in a fused q|k|v row. A
// workgroup has one head of one row.
//#include REDUCE

struct Params {
    // Columns of a head, query heads, columns of a fused row.
    dim: u32,
    query_heads: u32,
    fused: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> query: array<f32>;
@group(0) @binding(3) var<storage, read> key: array<f32>;

@compute @workgroup_size(256)
fn main(thread: Thread) {
    let head = thread.group.x;
    let at = thread.group.y * params.fused + head * params.dim;
    var square = 0.0;
    for (var i = thread.index; i < params.dim; i += 256u) {
        square = fma(qkv[at + i], qkv[at + i], square);
    }
    let scale = inverseSqrt(sum_of_all(thread, square) / f32(params.dim) + params.eps);
    for (var i = thread.index; i < params.dim; i += 256u) {
        let weight = select(key[i], query[i], head < params.query_heads);
        qkv[at + i] = qkv[at + i] * scale * weight;
    }
}
