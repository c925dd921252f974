// Quantises each row of x, a scale for every 32 columns.
requires packed_4x8_integer_dot_product;

struct Params {
    columns: u32,
    units: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> x: array<f32>;

//#include codes
//#include quantize

fn column_of(row: u32, column: u32) -> f32 {
    if (column >= params.columns) {
        return 0.0;
    }
    return x[row * params.columns + column];
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let quad = group.x * 256u + thread;
    let at = 4u * quad;
    let four = vec4(column_of(row, at), column_of(row, at + 1u), column_of(row, at + 2u), column_of(row, at + 3u));
    quantize_block(row, quad, params.units, four, thread);
}
