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

//#include quantize_sheet

// Four columns of x, of weight; 0 past the last. All are loaded before any is used.
fn four_of_x(at: u32, column: u32) -> vec4<f32> {
    let i = vec4(at) + min(vec4(column) + vec4(0u, 1u, 2u, 3u), vec4(params.columns - 1u));
    let four = vec4(x[i.x], x[i.y], x[i.z], x[i.w]);
    return select(vec4(0.0), four, vec4(column) + vec4(0u, 1u, 2u, 3u) < vec4(params.columns));
}

fn four_of_y(at: u32, column: u32) -> vec4<f32> {
    let i = vec4(at) + min(vec4(column) + vec4(0u, 1u, 2u, 3u), vec4(params.columns - 1u));
    return vec4(y[i.x], y[i.y], y[i.z], y[i.w]);
}

fn four_of_weight(column: u32) -> vec4<f32> {
    let i = min(vec4(column) + vec4(0u, 1u, 2u, 3u), vec4(params.columns - 1u));
    return vec4(weight[i.x], weight[i.y], weight[i.z], weight[i.w]);
}

// x + y: each thread stores its own columns, so that it sees what it added.
fn add_four(at: u32, column: u32, four: vec4<f32>, more: vec4<f32>) -> vec4<f32> {
    let sum = select(vec4(0.0), four + more, vec4(column) + vec4(0u, 1u, 2u, 3u) < vec4(params.columns));
    if (column < params.columns) {
        x[at + column] = sum.x;
    }
    if (column + 1u < params.columns) {
        x[at + column + 1u] = sum.y;
    }
    if (column + 2u < params.columns) {
        x[at + column + 2u] = sum.z;
    }
    if (column + 3u < params.columns) {
        x[at + column + 3u] = sum.w;
    }
    return sum;
}

// A thread's columns of the output.
fn normal(at: u32, column: u32, scale: f32) -> Sheet {
    let a = four_of_x(at, column) * scale * four_of_weight(column);
    let b = four_of_x(at, column + 1024u) * scale * four_of_weight(column + 1024u);
    let c = four_of_x(at, column + 2048u) * scale * four_of_weight(column + 2048u);
    let d = four_of_x(at, column + 3072u) * scale * four_of_weight(column + 3072u);
    return Sheet(a, b, c, d);
}

fn squares(four: vec4<f32>) -> f32 {
    return fma(four.x, four.x, fma(four.y, four.y, fma(four.z, four.z, four.w * four.w)));
}

fn store(at: u32, column: u32, four: vec4<f32>) {
    if (column < params.columns) {
        out[at + column] = four.x;
    }
    if (column + 1u < params.columns) {
        out[at + column + 1u] = four.y;
    }
    if (column + 2u < params.columns) {
        out[at + column + 2u] = four.z;
    }
    if (column + 3u < params.columns) {
        out[at + column + 3u] = four.w;
    }
}

@compute @workgroup_size(256)
fn main(thread: Thread) {
    let row = thread.group.x;
    let at = row * params.columns;
    let own = 4u * thread.index;
    var square = 0.0;
    for (var start = own; start < params.columns; start += 4096u) {
        // All is loaded before anything is stored.
        var a = four_of_x(at, start);
        var b = four_of_x(at, start + 1024u);
        var c = four_of_x(at, start + 2048u);
        var d = four_of_x(at, start + 3072u);
        if (ADD) {
            let e = four_of_y(at, start);
            let f = four_of_y(at, start + 1024u);
            let g = four_of_y(at, start + 2048u);
            let h = four_of_y(at, start + 3072u);
            a = add_four(at, start, a, e);
            b = add_four(at, start + 1024u, b, f);
            c = add_four(at, start + 2048u, c, g);
            d = add_four(at, start + 3072u, d, h);
        }
        square += (squares(a) + squares(b)) + (squares(c) + squares(d));
    }
    let scale = inverseSqrt(sum_of_all(thread, square) / f32(params.columns) + params.eps);
    var largest = vec4(0u);
    for (var start = 0u; start < params.columns; start += 4096u) {
        let sheet = normal(at, start + own, scale);
        store(at, start + own, sheet.a);
        store(at, start + own + 1024u, sheet.b);
        store(at, start + own + 2048u, sheet.c);
        store(at, start + own + 3072u, sheet.d);
        if (QUANTIZE == 1u) {
            largest = max(largest, magnitudes_of(sheet));
        } else if (QUANTIZE == 2u) {
            quantize_sheet(row, start / 4u + thread.index, params.units, sheet, thread.index);
        }
    }
    if (QUANTIZE == 1u) {
        let all = max_of_all(thread, max(max(largest.x, largest.y), max(largest.z, largest.w)));
        let span = span_of(all);
        for (var start = 0u; start < params.columns; start += 4096u) {
            let sheet = normal(at, start + own, scale);
            store_sheet(row, start / 4u + thread.index, params.units, sheet, Spans(span, span, span, span), thread.index);
        }
    }
}
