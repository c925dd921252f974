// out = W · x for few tokens. A workgroup has one tile of rows; its threads split the columns into
// segments, each summed in order by one thread for one row, and then add up the segments in order.
requires packed_4x8_integer_dot_product;

struct Params {
    units: u32,
    units_per_segment: u32,
    // Of this part of the matrix: its first row, its rows; and the rows of the whole.
    first_row: u32,
    rows: u32,
    stride: u32,
}

override BIAS: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(7) var<storage, read> bias: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;

//#include batch
//#include weights
//#include FORMAT
//#include activations
//#include TOKENS
//#include products

var<workgroup> sums: array<Values, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % TILE;
    let segment = thread / TILE;
    let tile = group.x;
    let token = group.y * TOKENS;
    var sum = Values();
    let start = segment * params.units_per_segment;
    let end = min(start + params.units_per_segment, params.units);
    for (var unit = start; unit < end; unit++) {
        let w = load_unit(first_piece(tile, lane, unit));
        let scale = unit_scales(tile, lane, unit);
        let zero = unit_zeros(tile, lane, unit);
        sum = add_unit(sum, load_inputs(token, unit), blocks_of(w), scale, zero);
    }
    sums[thread] = sum;
    workgroupBarrier();
    let row = tile * TILE + lane;
    if (segment > 0u || row >= params.rows) {
        return;
    }
    var total = Values();
    // Segments past the last column are zero.
    for (var at = lane; at < 256u; at += 4u * TILE) {
        total += sums[at];
        total += sums[at + TILE];
        total += sums[at + 2u * TILE];
        total += sums[at + 3u * TILE];
    }
    if (!SCALED) {
        total = finish(total, Values(bitcast<f32>(scales[row])), token_scale(token));
    }
    if (BIAS) {
        total += bias[params.first_row + row];
    }
    store(token, params.first_row + row, total);
}
