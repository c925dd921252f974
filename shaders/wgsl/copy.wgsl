// to = source, 16 bytes for each thread: how fast the device's memory is at best.
struct Params {
    // Vectors of 16 bytes, and threads in a row of workgroups.
    count: u32,
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> to: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = group.y * params.stride + group.x * 256u + thread;
    if (at < params.count) {
        to[at] = source[at];
    }
}
