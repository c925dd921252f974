// out[r] = table[token of r], for tables of floats.
struct Params {
    units: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

//#include batch
//#include dense

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * 256u + thread;
    let token = batch.row[group.y].x;
    // Another part of the table may hold the token.
    if (column < params.columns && token >= params.first_row && token - params.first_row < params.rows) {
        let row = token - params.first_row;
        let four = quad(row / TILE, row % TILE, column / 128u, column % 128u / 4u);
        out[group.y * params.columns + column] = four[column % 4u];
    }
}
