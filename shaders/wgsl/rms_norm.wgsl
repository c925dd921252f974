// out[r] = x[r] / sqrt(mean(x[r]²) + eps) · weight; with ADD, x[r] += y[r] comes first. What a product needs
// of out can be quantised at once.
requires packed_4x8_integer_dot_product;
//#include REDUCE

struct Params {
    columns: u32,
    eps: f32,
    units: u32,
}

override ADD: bool = false;
// 0: out stays as it is, 1: one scale for each row, 2: for each block of 32 columns.
override QUANTIZE: u32 = 0u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;
@group(0) @binding(4) var<storage, read> y: array<f32>;
@group(0) @binding(5) var<storage, read> weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

//#include quantize

fn normal(at: u32, column: u32, scale: f32) -> f32 {
    if (column >= params.columns) {
        return 0.0;
    }
    let value = x[at + column] * scale * weight[column];
    out[at + column] = value;
    return value;
}

fn normal4(at: u32, column: u32, scale: f32) -> vec4<f32> {
    return vec4(
        normal(at, column, scale),
        normal(at, column + 1u, scale),
        normal(at, column + 2u, scale),
        normal(at, column + 3u, scale),
    );
}

// Four columns of a thread: each thread's own, so that it sees what it added.
fn square_sum(at: u32, column: u32) -> f32 {
    var sum = 0.0;
    for (var i = column; i < min(column + 4u, params.columns); i++) {
        var value = x[at + i];
        if (ADD) {
            value += y[at + i];
            x[at + i] = value;
        }
        sum = fma(value, value, sum);
    }
    return sum;
}

@compute @workgroup_size(256)
fn main(thread: Thread) {
    let row = thread.group.x;
    let at = row * params.columns;
    var square = 0.0;
    for (var column = 4u * thread.index; column < params.columns; column += 1024u) {
        square += square_sum(at, column);
    }
    let scale = inverseSqrt(sum_of_all(thread, square) / f32(params.columns) + params.eps);
    var largest = 0u;
    for (var start = 0u; start < params.columns; start += 1024u) {
        let column = start + 4u * thread.index;
        let four = normal4(at, column, scale);
        if (QUANTIZE == 1u) {
            largest = max(largest, magnitude4(four));
        } else if (QUANTIZE == 2u) {
            quantize_block(row, column / 4u, params.units, four, thread.index);
            workgroupBarrier();
        }
    }
    if (QUANTIZE == 1u) {
        let span = span_of(max_of_all(thread, largest));
        for (var start = 0u; start < params.columns; start += 1024u) {
            let column = start + 4u * thread.index;
            store_codes(row, column / 4u, params.units, normal4(at, column, scale), span, thread.index);
            workgroupBarrier();
        }
    }
}
