// Rows of whole quads of columns: four at a time. lone_columns.wgsl does the same for any rows.
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> y: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;

fn quads() -> u32 {
    return COLUMNS / 4u;
}

// 0 past the last column. No load waits for a branch.
fn x_at(row: u32, quad: u32) -> vec4<f32> {
    return select(vec4(0.0), x[row * quads() + min(quad, quads() - 1u)], quad < quads());
}

fn y_at(row: u32, quad: u32) -> vec4<f32> {
    return select(vec4(0.0), y[row * quads() + min(quad, quads() - 1u)], quad < quads());
}

fn weight_at(quad: u32) -> vec4<f32> {
    return weight[min(quad, quads() - 1u)];
}

fn store_x_at(row: u32, quad: u32, four: vec4<f32>) {
    if (quad < quads()) {
        x[row * quads() + quad] = four;
    }
}

fn store_out_at(row: u32, quad: u32, four: vec4<f32>) {
    if (quad < quads()) {
        out[row * quads() + quad] = four;
    }
}
