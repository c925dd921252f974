// Codes and scales as in quantize.wgsl, of sheets of 4096 columns: a thread has four times four columns, 1024
// apart, so that what takes long is under way four times at once.
//#include codes

@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> spans: array<vec2<f32>>;

struct Sheet {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

struct Spans {
    a: Span,
    b: Span,
    c: Span,
    d: Span,
}

// Of each thread.
var<workgroup> magnitudes: array<vec4<u32>, 256>;
var<workgroup> code_sums: array<vec4<i32>, 256>;

fn magnitude4(x: vec4<f32>) -> u32 {
    return max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
}

fn magnitudes_of(x: Sheet) -> vec4<u32> {
    return vec4(magnitude4(x.a), magnitude4(x.b), magnitude4(x.c), magnitude4(x.d));
}

fn store_quad(row: u32, quad: u32, units: u32, word: u32, span: Span, sum: i32, first: bool) {
    if (quad >= 32u * units) {
        return;
    }
    codes[row * 32u * units + quad] = word;
    if (first) {
        spans[row * 4u * units + quad / 8u] = vec2(span.scale, f32(sum));
    }
}

// quad: the thread's first, counted in a row of 32 · units. Called by all threads.
fn store_sheet(row: u32, quad: u32, units: u32, x: Sheet, by: Spans, thread: u32) {
    let words = vec4(
        code4(x.a, by.a.inverse),
        code4(x.b, by.b.inverse),
        code4(x.c, by.c.inverse),
        code4(x.d, by.d.inverse),
    );
    code_sums[thread] = vec4(sum4(words.x), sum4(words.y), sum4(words.z), sum4(words.w));
    workgroupBarrier();
    let at = thread / 8u * 8u;
    let sums = ((code_sums[at] + code_sums[at + 1u]) + (code_sums[at + 2u] + code_sums[at + 3u]))
        + ((code_sums[at + 4u] + code_sums[at + 5u]) + (code_sums[at + 6u] + code_sums[at + 7u]));
    let first = thread == at;
    store_quad(row, quad, units, words.x, by.a, sums.x, first);
    store_quad(row, quad + 256u, units, words.y, by.b, sums.y, first);
    store_quad(row, quad + 512u, units, words.z, by.c, sums.z, first);
    store_quad(row, quad + 768u, units, words.w, by.d, sums.w, first);
    workgroupBarrier();
}

// A scale for each block of 32 columns.
fn quantize_sheet(row: u32, quad: u32, units: u32, x: Sheet, thread: u32) {
    magnitudes[thread] = magnitudes_of(x);
    workgroupBarrier();
    let at = thread / 8u * 8u;
    let low = max(max(magnitudes[at], magnitudes[at + 1u]), max(magnitudes[at + 2u], magnitudes[at + 3u]));
    let high = max(max(magnitudes[at + 4u], magnitudes[at + 5u]), max(magnitudes[at + 6u], magnitudes[at + 7u]));
    let largest = max(low, high);
    let by = Spans(span_of(largest.x), span_of(largest.y), span_of(largest.z), span_of(largest.w));
    store_sheet(row, quad, units, x, by, thread);
}
