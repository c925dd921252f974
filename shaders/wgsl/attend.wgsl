// Causal attention of up to HEADS query heads that share a key/value head, for one row: chunks of 64 positions,
// joined in order. With SPLIT a workgroup has one chunk and leaves the joining to attend_combine.wgsl; without,
// what a product needs of out can be quantised at once. With ROPE the row is the step's only one: queries and key
// are rotated here, and key and value stored.
requires packed_4x8_integer_dot_product;

struct Params {
    context: u32,
    // Vectors of keys in the cache: values come after them.
    vectors: u32,
    // Chunks in a SPLIT output.
    chunks: u32,
    // 1 / sqrt(DIM).
    scale: f32,
    // Query heads that share a key/value head; no constant, so that loops over heads stay loops.
    shared_by: u32,
}

// With one row, what takes time is the fetching of instructions that run once: so heads are constants, which lets
// the compiler leave out what a shape does not need, and what is done for each of them is a loop.
override DIM: u32 = 128u;
override QUERY_HEADS: u32 = 8u;
override KV_HEADS: u32 = 1u;
// Heads of a workgroup, up to 8: few for one row, many where rows keep the device busy and share what is loaded.
override HEADS: u32 = 8u;
override SPLIT: bool = false;
// A scale for each block of 32 columns; heads must be whole blocks, of up to 128 columns.
override QUANTIZE: bool = false;
// Heads must be whole pairs of quads.
override ROPE: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> batch: Batch;
@group(0) @binding(5) var<storage, read_write> cache: array<vec4<u32>>;
// Scales of INT8 vectors: keys', then values'.
@group(0) @binding(6) var<storage, read_write> scales: array<f32>;

//#include batch
//#include cache
//#include softmax
//#include cache_store
//#include rotate
//#include quantize
//#include WIDTH

// [head, quad of columns].
var<workgroup> query: array<vec4<f32>, 384>;
// What passes between threads, a chunk's scores above all; see main.
var<workgroup> work: array<vec4<f32>, 512>;

//#include attend_rope
//#include attend_scores
//#include attend_values

fn quads() -> u32 {
    return (DIM + 3u) / 4u;
}

fn shared_by() -> u32 {
    return QUERY_HEADS / KV_HEADS;
}

// Workgroups for each key/value head.
fn batches() -> u32 {
    return (shared_by() + HEADS - 1u) / HEADS;
}

// The row's queries as they are.
fn load_queries(first_vector: u32, heads: u32, thread: u32) {
    for (var i = thread; i < heads * quads(); i += 256u) {
        let quad = i % quads();
        query[i / quads() * 48u + quad] = four_of(first_vector + i / quads(), quad);
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = batch.row[group.z];
    let positions = row.z + 1u;
    let chunks = (positions + CHUNK - 1u) / CHUNK;
    let kv_head = group.y / batches();
    let skipped = group.y % batches() * HEADS;
    let heads = min(HEADS, params.shared_by - skipped);
    let first_head = kv_head * shared_by() + skipped;
    let place = Place(row.y, kv_head, KV_HEADS, params.context);
    if (SPLIT && group.x >= chunks) {
        return;
    }
    if (ROPE) {
        rotate_queries(first_head, heads, kv_head, row.z, thread);
        if (!SPLIT || group.x + 1u == chunks) {
            take_key_and_value(place, row.z, skipped == 0u, thread);
        }
    } else {
        load_queries(group.z * (QUERY_HEADS + 2u * KV_HEADS) + first_head, heads, thread);
    }
    workgroupBarrier();
    // 32 threads have a head; slot: which.
    let lane = thread % 32u;
    let slot = thread / 32u;
    var part = Part(-3.0e38, 0.0);
    var low = vec4<f32>();
    var high = vec4<f32>();
    let first = select(0u, group.x, SPLIT);
    let last = select(chunks, group.x + 1u, SPLIT);
    for (var chunk = first; chunk < last; chunk++) {
        let start = chunk * CHUNK;
        let count = min(CHUNK, positions - start);
        // Four threads have a position, each a quarter of the columns, for all heads. Values are on their way meanwhile.
        let values = load_values(place, start, count, slot, lane);
        keep_scores(place, start + min(thread % 64u, count - 1u), heads, thread);
        workgroupBarrier();
        // Of the head's positions a thread has two.
        let a = select(-3.0e38, score_of(slot, lane), lane < count);
        let b = select(-3.0e38, score_of(slot, lane + 32u), lane + 32u < count);
        workgroupBarrier();
        keep(MAXIMA, thread, max(a, b));
        workgroupBarrier();
        let highest = highest_of(slot);
        keep_weights(slot, lane, count, exp(a - highest), exp(b - highest));
        workgroupBarrier();
        let own = Part(highest, total_of(slot));
        let own_low = weighted(values, place, start, count, heads, lane, thread);
        var own_high = vec4<f32>();
        if (quads() > 32u) {
            let more = load_values(place, start, count, slot, lane + 32u);
            own_high = weighted(more, place, start, count, heads, lane + 32u, thread);
        }
        let by = factors(part.highest, own.highest);
        part = join(part, own, by);
        low = fma(low, vec4(by.x), own_low * by.y);
        high = fma(high, vec4(by.x), own_high * by.y);
    }
    let stored = slot < heads;
    let vector = group.z * QUERY_HEADS + first_head + slot;
    var at = vector * quads();
    if (SPLIT) {
        at = (vector * params.chunks + group.x) * (quads() + 1u);
        if (stored && lane == 0u) {
            store_sums(at + quads(), part);
        }
    } else {
        let by = 1.0 / part.total;
        low *= by;
        high *= by;
    }
    if (stored && lane < quads()) {
        store(at, lane, low);
    }
    if (quads() > 32u && stored && lane + 32u < quads()) {
        store(at, lane + 32u, high);
    }
    if (QUANTIZE) {
        // A quad past the last is stored nowhere.
        let quad = select(0xffffffffu, (first_head + slot) * quads() + lane, stored && lane < quads());
        quantize_block(group.z, quad, (QUERY_HEADS * DIM + 127u) / 128u, low, thread);
    }
}
