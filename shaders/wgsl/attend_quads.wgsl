// Heads of whole quads of columns. attend_columns.wgsl does the same for any heads.
@group(0) @binding(4) var<storage, read> qkv: array<vec4<f32>>;
// [row, head, quad]; with SPLIT [row, head, chunk, quad + 1]: sums, then the highest score and the sum of weights.
@group(0) @binding(7) var<storage, read_write> out: array<vec4<f32>>;
// With ROPE, row p: cos[DIM / 2] | sin[DIM / 2] of position p.
@group(0) @binding(8) var<storage, read> angles: array<vec4<f32>>;

// vector: counts the heads of all rows.
fn four_of(vector: u32, quad: u32) -> vec4<f32> {
    return qkv[vector * quads() + quad];
}

fn four_angles(position: u32, quad: u32) -> vec4<f32> {
    return angles[position * quads() + quad];
}

// at: where the head begins, in quads.
fn store(at: u32, quad: u32, sum: vec4<f32>) {
    out[at + quad] = sum;
}

fn store_sums(at: u32, part: Part) {
    out[at] = vec4(part.highest, part.total, 0.0, 0.0);
}
