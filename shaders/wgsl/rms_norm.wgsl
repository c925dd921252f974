// out[r] = x[r] / sqrt(mean(x[r]²) + eps) · weight; with ADD, x[r] += y[r] comes first. What a product needs
// of out can be quantised at once. A workgroup has a row, in sheets of 4096 columns: a thread has four times
// four columns of a sheet, 1024 apart. The last sheet stays in registers between the sum and its use.
requires packed_4x8_integer_dot_product;
//#include REDUCE

struct Params {
    eps: f32,
}

// A constant, so that a row of one sheet has no loops: its only workgroup has nothing to hide them behind.
override COLUMNS: u32 = 4096u;
override ADD: bool = false;
// 0: out stays as it is, 1: one scale for each row, 2: for each block of 32 columns.
override QUANTIZE: u32 = 0u;

@group(0) @binding(0) var<uniform> params: Params;

struct Sheet {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

//#include quantize_sheet
//#include WIDTH

fn load_x(row: u32, quad: u32) -> Sheet {
    return Sheet(x_at(row, quad), x_at(row, quad + 256u), x_at(row, quad + 512u), x_at(row, quad + 768u));
}

fn load_y(row: u32, quad: u32) -> Sheet {
    return Sheet(y_at(row, quad), y_at(row, quad + 256u), y_at(row, quad + 512u), y_at(row, quad + 768u));
}

fn load_weight(quad: u32) -> Sheet {
    return Sheet(weight_at(quad), weight_at(quad + 256u), weight_at(quad + 512u), weight_at(quad + 768u));
}

fn store_x(row: u32, quad: u32, sheet: Sheet) {
    store_x_at(row, quad, sheet.a);
    store_x_at(row, quad + 256u, sheet.b);
    store_x_at(row, quad + 512u, sheet.c);
    store_x_at(row, quad + 768u, sheet.d);
}

fn store_out(row: u32, quad: u32, sheet: Sheet) {
    store_out_at(row, quad, sheet.a);
    store_out_at(row, quad + 256u, sheet.b);
    store_out_at(row, quad + 512u, sheet.c);
    store_out_at(row, quad + 768u, sheet.d);
}

fn squares(sheet: Sheet) -> f32 {
    let sum = fma(sheet.a, sheet.a, fma(sheet.b, sheet.b, fma(sheet.c, sheet.c, sheet.d * sheet.d)));
    return (sum.x + sum.y) + (sum.z + sum.w);
}

fn normal(x: Sheet, scale: f32, weight: Sheet) -> Sheet {
    return Sheet(
        x.a * scale * weight.a,
        x.b * scale * weight.b,
        x.c * scale * weight.c,
        x.d * scale * weight.d,
    );
}

@compute @workgroup_size(256)
fn main(thread: Thread) {
    let row = thread.group.x;
    let sheets = (COLUMNS + 4095u) / 4096u;
    let units = (COLUMNS + 127u) / 128u;
    let last = 1024u * (sheets - 1u) + thread.index;
    // What comes from memory that nobody has used lately is asked for first.
    var w = load_weight(last);
    var own = Sheet();
    var square = 0.0;
    for (var sheet = 0u; sheet < sheets; sheet++) {
        let quad = 1024u * sheet + thread.index;
        own = load_x(row, quad);
        if (ADD) {
            let more = load_y(row, quad);
            own = Sheet(own.a + more.a, own.b + more.b, own.c + more.c, own.d + more.d);
            store_x(row, quad, own);
        }
        square += squares(own);
    }
    let scale = inverseSqrt(sum_of_all(thread, square) / f32(COLUMNS) + params.eps);
    var largest = 0u;
    // From the last sheet to the first.
    for (var sheet = sheets; sheet > 0u; sheet--) {
        let quad = 1024u * (sheet - 1u) + thread.index;
        if (sheet < sheets) {
            own = load_x(row, quad);
            w = load_weight(quad);
        }
        let result = normal(own, scale, w);
        store_out(row, quad, result);
        if (QUANTIZE == 1u) {
            largest = max(largest, magnitude_of_sheet(result));
        } else if (QUANTIZE == 2u) {
            quantize_sheet(row, 1024u * (sheet - 1u), units, result, thread.index);
        }
    }
    if (QUANTIZE == 1u) {
        let span = span_of(max_of_all(thread, largest));
        share(span.inverse, thread.index);
        for (var sheet = 0u; sheet < sheets; sheet++) {
            let quad = 1024u * sheet + thread.index;
            // After the loop above, own is the first sheet.
            if (sheet > 0u) {
                own = load_x(row, quad);
                w = load_weight(quad);
            }
            let result = normal(own, scale, w);
            store_sheet(row, 1024u * sheet, units, result, span.scale, thread.index);
        }
    }
}
