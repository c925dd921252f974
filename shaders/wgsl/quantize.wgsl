// Codes and scales of activations: each thread has four columns, eight threads a block of 32. codes.wgsl comes
// first.

// As activations.wgsl reads them, padded with zeros to units of 128 columns.
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> spans: array<vec2<f32>>;

// Of each thread, four to a vector: the largest magnitude, then the sum of codes.
var<workgroup> quad_words: array<vec4<u32>, 64>;
// Of each block.
var<workgroup> inverses: array<f32, 32>;

fn magnitude4(x: vec4<f32>) -> u32 {
    return max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
}

// Stores the codes of four columns; quad: counts four columns of a row of 32 · units of them; scale: needed in the
// first thread of a block. A barrier must come before the next call. Called by all threads, whether their quad exists
// or not.
fn store_codes(row: u32, quad: u32, units: u32, x: vec4<f32>, scale: f32, inverse: f32, thread: u32) {
    let word = code4(x, inverse);
    quad_words[thread / 4u][thread % 4u] = bitcast<u32>(sum4(word));
    workgroupBarrier();
    if (quad >= 32u * units) {
        return;
    }
    codes[row * 32u * units + quad] = word;
    if (thread % 8u == 0u) {
        let sum = bitcast<vec4<i32>>(quad_words[thread / 4u] + quad_words[thread / 4u + 1u]);
        spans[row * 4u * units + quad / 8u] = vec2(scale, f32(sum.x + sum.y + sum.z + sum.w));
    }
}

// Quantises four columns with a scale for each block.
fn quantize_block(row: u32, quad: u32, units: u32, x: vec4<f32>, thread: u32) {
    quad_words[thread / 4u][thread % 4u] = magnitude4(x);
    workgroupBarrier();
    let eight = max(quad_words[thread / 8u * 2u], quad_words[thread / 8u * 2u + 1u]);
    let largest = max(max(eight.x, eight.y), max(eight.z, eight.w));
    // A block's first thread divides for the scale, the second for the codes.
    let half = span_half(largest, thread % 8u == 1u);
    if (thread % 8u == 1u) {
        inverses[thread / 8u] = half;
    }
    workgroupBarrier();
    store_codes(row, quad, units, x, half, inverses[thread / 8u], thread);
}
