// Copies the rows whose logits are wanted to the front of out.
struct Params {
    columns: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

//#include batch

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * 256u + thread;
    if (column < params.columns) {
        out[group.y * params.columns + column] = x[batch.row[group.y].w * params.columns + column];
    }
}
