// out[r] = gate(g) · u where a row of gate_up is [g | u]. What a product needs of out can be quantised at
// once.
requires packed_4x8_integer_dot_product;

struct Params {
    columns: u32,
    units: u32,
}

// A scale for each block of 32 columns.
override QUANTIZE: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> gate_up: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

//#include codes
//#include quantize
//#include gate

fn column_of(row: u32, column: u32) -> f32 {
    if (column >= params.columns) {
        return 0.0;
    }
    let at = row * 2u * params.columns + column;
    let value = gate(gate_up[at]) * gate_up[at + params.columns];
    out[row * params.columns + column] = value;
    return value;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let quad = group.x * 256u + thread;
    let at = 4u * quad;
    let four = vec4(column_of(row, at), column_of(row, at + 1u), column_of(row, at + 2u), column_of(row, at + 3u));
    if (QUANTIZE) {
        quantize_block(row, quad, params.units, four, thread);
    }
}
