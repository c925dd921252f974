// Codes and scales of activations: each thread has four columns, eight threads a block of 32. codes.wgsl comes
// first.

// As activations.wgsl reads them, padded with zeros to units of 128 columns.
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> spans: array<vec2<f32>>;

// Of each thread, four to a vector.
var<workgroup> magnitudes: array<vec4<u32>, 64>;
var<workgroup> code_sums: array<vec4<i32>, 64>;

fn magnitude4(x: vec4<f32>) -> u32 {
    return max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
}

// Stores the codes of four columns; quad: counts four columns of a row of 32 · units of them. A barrier must
// come before the next call. Called by all threads, whether their quad exists or not.
fn store_codes(row: u32, quad: u32, units: u32, x: vec4<f32>, span: Span, thread: u32) {
    let word = code4(x, span.inverse);
    code_sums[thread / 4u][thread % 4u] = sum4(word);
    workgroupBarrier();
    if (quad >= 32u * units) {
        return;
    }
    codes[row * 32u * units + quad] = word;
    if (thread % 8u == 0u) {
        let sum = code_sums[thread / 4u] + code_sums[thread / 4u + 1u];
        spans[row * 4u * units + quad / 8u] = vec2(span.scale, f32(sum.x + sum.y + sum.z + sum.w));
    }
}

// Quantises four columns with a scale for each block.
fn quantize_block(row: u32, quad: u32, units: u32, x: vec4<f32>, thread: u32) {
    magnitudes[thread / 4u][thread % 4u] = magnitude4(x);
    workgroupBarrier();
    let eight = max(magnitudes[thread / 8u * 2u], magnitudes[thread / 8u * 2u + 1u]);
    let largest = max(max(eight.x, eight.y), max(eight.z, eight.w));
    store_codes(row, quad, units, x, span_of(largest), thread);
}
