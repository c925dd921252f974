// Quantises each row of x with one scale.
requires packed_4x8_integer_dot_product;
//#include REDUCE

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
fn main(thread: Thread) {
    let row = thread.group.x;
    var largest = 0u;
    for (var column = thread.index; column < params.columns; column += 256u) {
        largest = max(largest, magnitude(x[row * params.columns + column]));
    }
    let span = span_of(max_of_all(thread, largest));
    for (var start = 0u; start < 32u * params.units; start += 256u) {
        let quad = start + thread.index;
        let at = 4u * quad;
        let four = vec4(column_of(row, at), column_of(row, at + 1u), column_of(row, at + 2u), column_of(row, at + 3u));
        store_codes(row, quad, params.units, four, span.scale, span.inverse, thread.index);
        workgroupBarrier();
    }
}
