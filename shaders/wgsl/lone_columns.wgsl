// Rows of any number of columns: one at a time. quads.wgsl does the same for whole quads, faster.
@group(0) @binding(3) var<storage, read_write> x: array<f32>;
@group(0) @binding(4) var<storage, read> y: array<f32>;
@group(0) @binding(5) var<storage, read> weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

fn columns_of(quad: u32) -> vec4<u32> {
    return vec4(4u * quad) + vec4(0u, 1u, 2u, 3u);
}

// The indices in a row; past the last column, the last once more.
fn within(quad: u32) -> vec4<u32> {
    return min(columns_of(quad), vec4(COLUMNS - 1u));
}

// 0 past the last column.
fn x_at(row: u32, quad: u32) -> vec4<f32> {
    let i = vec4(row * COLUMNS) + within(quad);
    return select(vec4(0.0), vec4(x[i.x], x[i.y], x[i.z], x[i.w]), columns_of(quad) < vec4(COLUMNS));
}

fn y_at(row: u32, quad: u32) -> vec4<f32> {
    let i = vec4(row * COLUMNS) + within(quad);
    return select(vec4(0.0), vec4(y[i.x], y[i.y], y[i.z], y[i.w]), columns_of(quad) < vec4(COLUMNS));
}

fn weight_at(quad: u32) -> vec4<f32> {
    let i = within(quad);
    return vec4(weight[i.x], weight[i.y], weight[i.z], weight[i.w]);
}

fn store_x_at(row: u32, quad: u32, four: vec4<f32>) {
    for (var i = 0u; i < 4u && 4u * quad + i < COLUMNS; i++) {
        x[row * COLUMNS + 4u * quad + i] = four[i];
    }
}

fn store_out_at(row: u32, quad: u32, four: vec4<f32>) {
    for (var i = 0u; i < 4u && 4u * quad + i < COLUMNS; i++) {
        out[row * COLUMNS + 4u * quad + i] = four[i];
    }
}
