// out[r] = table[token of r], for quantised tables.
struct Params {
    units: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

//#include batch
//#include weights
//#include FORMAT

fn weight(row: u32, column: u32) -> f32 {
    let tile = row / TILE;
    let lane = row % TILE;
    let unit = column / 128u;
    let b = column % 128u / 32u;
    let block = block(first_piece(tile, lane, unit), b);
    let words = select(block.low, block.high, column % 32u >= 16u);
    let byte = words[column % 16u / 4u] << (24u - 8u * (column % 4u));
    let code = f32(bitcast<i32>(byte) >> 24u);
    let scale = unit_scales(tile, lane, unit)[b];
    let zero = unit_zeros(tile, lane, unit)[b];
    if (ZERO == MINIMUM) {
        return scale * code + zero;
    }
    if (ZERO == POINT) {
        return scale * (code - zero);
    }
    if (ZERO == EIGHT) {
        return scale * (code - 8.0);
    }
    if (!SCALED) {
        return bitcast<f32>(scales[row]) * (code - 1.0);
    }
    return scale * code;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * 256u + thread;
    let token = batch.row[group.y].x;
    // Another part of the table may hold the token.
    if (column < params.columns && token >= params.first_row && token - params.first_row < params.rows) {
        out[group.y * params.columns + column] = weight(token - params.first_row, column);
    }
}
