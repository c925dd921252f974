// Codes and scales as in quantize.wgsl, of a sheet of 4096 columns: a thread has four times four columns, 1024
// apart. What a block needs once is computed by one thread: code that runs once in a dispatch must be short,
// since each instruction comes from memory.
//#include codes

@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> spans: array<vec2<f32>>;

// Of each quad of the sheet, four to a vector.
var<workgroup> magnitudes: array<vec4<u32>, 256>;
var<workgroup> code_sums: array<vec4<i32>, 256>;
// Of each block of the sheet.
var<workgroup> inverses: array<f32, 128>;

fn magnitude4(x: vec4<f32>) -> u32 {
    let four = bitcast<vec4<u32>>(x) & vec4(0x7fffffffu);
    return max(max(four.x, four.y), max(four.z, four.w));
}

fn magnitude_of_sheet(x: Sheet) -> u32 {
    return max(max(magnitude4(x.a), magnitude4(x.b)), max(magnitude4(x.c), magnitude4(x.d)));
}

// scale: of the sheet's block whose number is the thread's; inverses hold the multipliers. first: the row's quad that
// the sheet begins with. Called by all threads.
fn store_sheet(row: u32, first: u32, units: u32, x: Sheet, scale: f32, thread: u32) {
    var rest = x;
    for (var quad = thread; quad < min(1024u, 32u * units - first); quad += 256u) {
        let word = code4(rest.a, inverses[quad / 8u]);
        code_sums[quad / 4u][quad % 4u] = sum4(word);
        codes[row * 32u * units + first + quad] = word;
        rest = Sheet(rest.b, rest.c, rest.d, rest.d);
    }
    workgroupBarrier();
    let block = first / 8u + thread;
    if (thread < 128u && block < 4u * units) {
        let sum = code_sums[2u * thread] + code_sums[2u * thread + 1u];
        spans[row * 4u * units + block] = vec2(scale, f32((sum.x + sum.y) + (sum.z + sum.w)));
    }
    workgroupBarrier();
}

// The same multiplier for all of a sheet's blocks.
fn share(inverse: f32, thread: u32) {
    if (thread < 128u) {
        inverses[thread] = inverse;
    }
    workgroupBarrier();
}

// A scale for each block of 32 columns.
fn quantize_sheet(row: u32, first: u32, units: u32, x: Sheet, thread: u32) {
    magnitudes[thread / 4u][thread % 4u] = magnitude4(x.a);
    magnitudes[thread / 4u + 64u][thread % 4u] = magnitude4(x.b);
    magnitudes[thread / 4u + 128u][thread % 4u] = magnitude4(x.c);
    magnitudes[thread / 4u + 192u][thread % 4u] = magnitude4(x.d);
    workgroupBarrier();
    let block = thread % 128u;
    let four = max(magnitudes[2u * block], magnitudes[2u * block + 1u]);
    // Half of the threads divide for scales, half for codes.
    let is_inverse = thread >= 128u;
    let half = span_half(max(max(four.x, four.y), max(four.z, four.w)), is_inverse);
    if (is_inverse) {
        inverses[block] = half;
    }
    workgroupBarrier();
    store_sheet(row, first, units, x, half, thread);
}
