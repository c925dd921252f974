// Causal attention of up to 8 query heads that share a key/value head, for one row: chunks of 64 positions,
// joined in order. With SPLIT a workgroup has one chunk and leaves the joining to attend_combine.wgsl; without,
// what a product needs of out can be quantised at once. With ROPE the row is the step's only one: queries and key
// are rotated here, and key and value stored.
requires packed_4x8_integer_dot_product;

struct Params {
    dim: u32,
    query_heads: u32,
    kv_heads: u32,
    context: u32,
    // Vectors of keys in the cache: values come after them.
    vectors: u32,
    // Workgroups for each key/value head, of 8 query heads each; chunks in a SPLIT output.
    batches: u32,
    chunks: u32,
    // 1 / sqrt(dim).
    scale: f32,
    // Units of 128 columns in a row of codes.
    units: u32,
}

override SPLIT: bool = false;
// A scale for each block of 32 columns; heads must be whole blocks, of up to 128 columns.
override QUANTIZE: bool = false;
// Heads must be whole pairs of quads, and up to 8 must share a key/value head.
override ROPE: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> batch: Batch;
@group(0) @binding(4) var<storage, read> qkv: array<f32>;
@group(0) @binding(5) var<storage, read_write> cache: array<vec4<u32>>;
// Scales of INT8 vectors: keys', then values'.
@group(0) @binding(6) var<storage, read_write> scales: array<f32>;
// [row, head, dim]; with SPLIT [row, head, chunk, dim + 2]: sums, the highest score, the sum of weights.
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
// With ROPE, row p: cos[dim / 2] | sin[dim / 2] of position p.
@group(0) @binding(8) var<storage, read> angles: array<f32>;

//#include batch
//#include cache
//#include softmax
//#include cache_store
//#include rotate
//#include quantize

// [head, quad of columns], [head, position], [head, 32 partial results in vectors], [thread].
var<workgroup> query: array<vec4<f32>, 384>;
var<workgroup> scores: array<f32, 512>;
var<workgroup> partial: array<vec4<f32>, 64>;
var<workgroup> parts: array<vec4<f32>, 256>;

//#include attend_rope

fn scale_of(index: u32) -> f32 {
    if (CACHE == 2u) {
        return scales[index];
    }
    return 1.0;
}

fn key(place: Place, position: u32, piece: u32) -> vec4<u32> {
    return cache[key_piece(place, params.dim, position, min(piece, pieces(params.dim) - 1u))];
}

// Adds a piece's columns; there may be none.
fn add_piece(start: vec4<f32>, words: vec4<u32>, head: u32, piece: u32, scale: f32) -> vec4<f32> {
    var sum = start;
    for (var i = 0u; i < quads_per_piece(); i++) {
        let quad = piece * quads_per_piece() + i;
        if (quad < (params.dim + 3u) / 4u) {
            sum = fma(query[head * 48u + quad], quad_of(words, i, scale), sum);
        }
    }
    return sum;
}

// The largest, and the sum, of a head's partial results.
fn highest_of(head: u32) -> f32 {
    let at = 8u * head;
    let low = max(max(partial[at], partial[at + 1u]), max(partial[at + 2u], partial[at + 3u]));
    let high = max(max(partial[at + 4u], partial[at + 5u]), max(partial[at + 6u], partial[at + 7u]));
    let four = max(low, high);
    return max(max(four.x, four.y), max(four.z, four.w));
}

fn total_of(head: u32) -> f32 {
    let at = 8u * head;
    let low = (partial[at] + partial[at + 1u]) + (partial[at + 2u] + partial[at + 3u]);
    let high = (partial[at + 4u] + partial[at + 5u]) + (partial[at + 6u] + partial[at + 7u]);
    let four = low + high;
    return (four.x + four.y) + (four.z + four.w);
}

fn score(place: Place, position: u32, head: u32) -> f32 {
    let scale = scale_of(vector_at(place, position));
    var sum = vec4<f32>();
    // Eight pieces are on their way at a time.
    for (var piece = 0u; piece < pieces(params.dim); piece += 8u) {
        let a = key(place, position, piece);
        let b = key(place, position, piece + 1u);
        let c = key(place, position, piece + 2u);
        let d = key(place, position, piece + 3u);
        let e = key(place, position, piece + 4u);
        let f = key(place, position, piece + 5u);
        let g = key(place, position, piece + 6u);
        let h = key(place, position, piece + 7u);
        sum = add_piece(sum, a, head, piece, scale);
        sum = add_piece(sum, b, head, piece + 1u, scale);
        sum = add_piece(sum, c, head, piece + 2u, scale);
        sum = add_piece(sum, d, head, piece + 3u, scale);
        sum = add_piece(sum, e, head, piece + 4u, scale);
        sum = add_piece(sum, f, head, piece + 5u, scale);
        sum = add_piece(sum, g, head, piece + 6u, scale);
        sum = add_piece(sum, h, head, piece + 7u, scale);
    }
    return ((sum.x + sum.y) + (sum.z + sum.w)) * params.scale;
}

// Four columns of a value, its piece given.
fn value(words: vec4<u32>, place: Place, position: u32, quad: u32) -> vec4<f32> {
    return quad_of(words, quad, scale_of(params.vectors + vector_at(place, position)));
}

// The sum of values by their weights, for one quad of columns: of every step-th position of a chunk's first count.
fn weighted(place: Place, start: u32, first: u32, count: u32, step: u32, head: u32, quad: u32) -> vec4<f32> {
    let pieces = pieces(params.dim);
    let base = (params.vectors + vector_at(place, start)) * pieces + quad / quads_per_piece();
    let last = count - 1u;
    var sum = vec4<f32>();
    // Four are on their way at a time.
    for (var i = first; i < count; i += 4u * step) {
        let at = min(vec4(i) + vec4(0u, 1u, 2u, 3u) * step, vec4(last));
        let a = cache[base + at.x * pieces];
        let b = cache[base + at.y * pieces];
        let c = cache[base + at.z * pieces];
        let d = cache[base + at.w * pieces];
        let w = scores_at(head, vec4(i) + vec4(0u, 1u, 2u, 3u) * step, count);
        sum = fma(vec4(w.x), value(a, place, start + at.x, quad), sum);
        sum = fma(vec4(w.y), value(b, place, start + at.y, quad), sum);
        sum = fma(vec4(w.z), value(c, place, start + at.z, quad), sum);
        sum = fma(vec4(w.w), value(d, place, start + at.w, quad), sum);
    }
    return sum;
}

// Weights of positions, 0 past the last.
fn scores_at(head: u32, at: vec4<u32>, count: u32) -> vec4<f32> {
    let i = vec4(head * CHUNK) + min(at, vec4(count - 1u));
    return select(vec4(0.0), vec4(scores[i.x], scores[i.y], scores[i.z], scores[i.w]), at < vec4(count));
}

// The sum over the threads that share a head's positions, valid in the first of them.
fn gather(mine: vec4<f32>, thread: u32, heads: u32) -> vec4<f32> {
    workgroupBarrier();
    parts[thread] = mine;
    workgroupBarrier();
    var sum = mine;
    for (var other = thread + 32u * heads; other < 256u; other += 32u * heads) {
        sum += parts[other];
    }
    return sum;
}

fn store(at: u32, quad: u32, sum: vec4<f32>) {
    for (var i = 0u; i < min(4u, params.dim - 4u * quad); i++) {
        out[at + 4u * quad + i] = sum[i];
    }
}

// The row's queries as they are; at: the first head's first column.
fn load_queries(at: u32, heads: u32, thread: u32) {
    let quads = (params.dim + 3u) / 4u;
    for (var i = thread; i < heads * quads; i += 256u) {
        let quad = i % quads;
        let first = at + i / quads * params.dim + 4u * quad;
        var four = vec4<f32>();
        for (var j = 0u; j < min(4u, params.dim - 4u * quad); j++) {
            four[j] = qkv[first + j];
        }
        query[i / quads * 48u + quad] = four;
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = batch.row[group.z];
    let positions = row.z + 1u;
    let chunks = (positions + CHUNK - 1u) / CHUNK;
    let shared_by = params.query_heads / params.kv_heads;
    let kv_head = group.y / params.batches;
    let skipped = group.y % params.batches * 8u;
    let heads = min(8u, shared_by - skipped);
    let first_head = kv_head * shared_by + skipped;
    let place = Place(row.y, kv_head, params.kv_heads, params.context);
    let quads = (params.dim + 3u) / 4u;
    if (SPLIT && group.x >= chunks) {
        return;
    }
    let fused = group.z * (params.query_heads + 2u * params.kv_heads) * params.dim;
    if (ROPE) {
        rotate_queries(first_head, heads, kv_head, row.z, thread);
        if (!SPLIT || group.x + 1u == chunks) {
            store_key_and_value(place, row.z, thread);
        }
    } else {
        load_queries(fused + first_head * params.dim, heads, thread);
    }
    workgroupBarrier();
    // 32 threads have a head's columns; where there are fewer than 8 heads they share the positions.
    let lane = thread % 32u;
    let spread = select(select(select(8u, 4u, heads <= 4u), 2u, heads <= 2u), 1u, heads == 1u);
    let head = thread / 32u % spread;
    var part = Part(-3.0e38, 0.0);
    var low = vec4<f32>();
    var high = vec4<f32>();
    let first = select(0u, group.x, SPLIT);
    let last = select(chunks, group.x + 1u, SPLIT);
    for (var chunk = first; chunk < last; chunk++) {
        let start = chunk * CHUNK;
        let count = min(CHUNK, positions - start);
        for (var i = thread; i < heads * CHUNK; i += 256u) {
            var s = -3.0e38;
            if (i % CHUNK < count) {
                s = score(place, start + i % CHUNK, i / CHUNK);
            }
            scores[i] = s;
        }
        workgroupBarrier();
        let mine = thread / 32u * CHUNK + lane;
        partial[thread / 4u][thread % 4u] = max(scores[mine], scores[mine + 32u]);
        workgroupBarrier();
        let highest = highest_of(thread / 32u);
        workgroupBarrier();
        let a = select(0.0, exp(scores[mine] - highest), lane < count);
        let b = select(0.0, exp(scores[mine + 32u] - highest), lane + 32u < count);
        scores[mine] = a;
        scores[mine + 32u] = b;
        partial[thread / 4u][thread % 4u] = a + b;
        parts[thread].x = highest;
        workgroupBarrier();
        let own = Part(parts[head * 32u].x, total_of(head));
        var own_low = vec4<f32>();
        var own_high = vec4<f32>();
        let own_first = thread / 32u / spread;
        if (lane < quads) {
            own_low = weighted(place, start, own_first, count, 8u / spread, head, lane);
        }
        if (lane + 32u < quads) {
            own_high = weighted(place, start, own_first, count, 8u / spread, head, lane + 32u);
        }
        if (spread < 8u) {
            own_low = gather(own_low, thread, spread);
            if (quads > 32u) {
                own_high = gather(own_high, thread, spread);
            }
        }
        let by = factors(part.highest, own.highest);
        part = join(part, own, by);
        low = fma(low, vec4(by.x), own_low * by.y);
        high = fma(high, vec4(by.x), own_high * by.y);
        workgroupBarrier();
    }
    let stored = thread < 32u * spread && head < heads;
    var at = (group.z * params.query_heads + first_head + head) * params.dim;
    if (SPLIT) {
        at = ((group.z * params.query_heads + first_head + head) * params.chunks + group.x) * (params.dim + 2u);
        if (stored && lane == 0u) {
            out[at + params.dim] = part.highest;
            out[at + params.dim + 1u] = part.total;
        }
    } else {
        low = low / part.total;
        high = high / part.total;
    }
    if (stored && lane < quads) {
        store(at, lane, low);
    }
    if (stored && lane + 32u < quads) {
        store(at, lane + 32u, high);
    }
    if (QUANTIZE) {
        // A quad past the last is stored nowhere.
        let quad = select(0xffffffffu, (first_head + head) * quads + lane, stored && lane < quads);
        quantize_block(group.z, quad, params.units, low, thread);
    }
}
