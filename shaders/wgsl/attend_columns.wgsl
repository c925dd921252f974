// Heads of any number of columns. attend_quads.wgsl does the same for whole quads, faster.
@group(0) @binding(4) var<storage, read> qkv: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
@group(0) @binding(8) var<storage, read> angles: array<f32>;

fn four_of(vector: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < min(4u, DIM - 4u * quad); i++) {
        four[i] = qkv[vector * DIM + 4u * quad + i];
    }
    return four;
}

fn four_angles(position: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < min(4u, DIM - 4u * quad); i++) {
        four[i] = angles[position * DIM + 4u * quad + i];
    }
    return four;
}

// at: where the head begins, in quads. Sums that are joined later are in whole quads.
fn store(at: u32, quad: u32, sum: vec4<f32>) {
    let first = select(at / quads() * DIM, 4u * at, SPLIT) + 4u * quad;
    for (var i = 0u; i < min(4u, DIM - 4u * quad); i++) {
        out[first + i] = sum[i];
    }
}

fn store_sums(at: u32, part: Part) {
    out[4u * at] = part.highest;
    out[4u * at + 1u] = part.total;
}
