// Scores of a chunk's positions, and their weights. work holds [quarter of the columns, head, position], scores' parts;
// then MAXIMA, WEIGHTS and SUMS, and for attend_values.wgsl PARTS. Here they are in vectors, four numbers each.
const MAXIMA = 0u; // [head, 32]
const WEIGHTS = 64u; // [head, position]
const SUMS = 192u; // [head, 32]
const PARTS = 256u; // [thread]

// Eight quads of a key's columns.
struct Octet {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    e: vec4<f32>,
    f: vec4<f32>,
    g: vec4<f32>,
    h: vec4<f32>,
}

// A number among those that begin at a vector of work.
fn keep(first: u32, at: u32, x: f32) {
    work[first + at / 4u][at % 4u] = x;
}

fn kept(first: u32, at: u32) -> f32 {
    return work[first + at / 4u][at % 4u];
}

fn key(place: Place, position: u32, piece: u32) -> vec4<u32> {
    let i = min(piece, pieces(DIM) - 1u);
    let words = cache[key_piece(place, DIM, position, i)];
    if (ROPE) {
        return select(words, key_words[i], position == fresh);
    }
    return words;
}

fn key_scale(place: Place, position: u32) -> f32 {
    if (CACHE < 2u) {
        return 1.0;
    }
    return select(scales[vector_at(place, position)], fresh_scales.x, position == fresh);
}

// quad: the first one, at the beginning of a piece.
fn load_octet(place: Place, position: u32, quad: u32) -> Octet {
    let scale = key_scale(place, position);
    let p = quad / quads_per_piece();
    let a = key(place, position, p);
    let b = key(place, position, p + 1u);
    if (CACHE == 2u) {
        return Octet(
            quad_of(a, 0u, scale), quad_of(a, 1u, scale), quad_of(a, 2u, scale), quad_of(a, 3u, scale),
            quad_of(b, 0u, scale), quad_of(b, 1u, scale), quad_of(b, 2u, scale), quad_of(b, 3u, scale),
        );
    }
    let c = key(place, position, p + 2u);
    let d = key(place, position, p + 3u);
    if (CACHE == 1u) {
        return Octet(
            quad_of(a, 0u, 1.0), quad_of(a, 1u, 1.0), quad_of(b, 0u, 1.0), quad_of(b, 1u, 1.0),
            quad_of(c, 0u, 1.0), quad_of(c, 1u, 1.0), quad_of(d, 0u, 1.0), quad_of(d, 1u, 1.0),
        );
    }
    let e = key(place, position, p + 4u);
    let f = key(place, position, p + 5u);
    let g = key(place, position, p + 6u);
    let h = key(place, position, p + 7u);
    return Octet(
        bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b), bitcast<vec4<f32>>(c), bitcast<vec4<f32>>(d),
        bitcast<vec4<f32>>(e), bitcast<vec4<f32>>(f), bitcast<vec4<f32>>(g), bitcast<vec4<f32>>(h),
    );
}

// Quads of a quarter, in whole pieces.
fn quarter_quads() -> u32 {
    return (pieces(DIM) + 3u) / 4u * quads_per_piece();
}

// Adds the product of a query's quad and a key's. i: the quad's number in its quarter, which may not have it.
fn add_quad(sum: f32, head: u32, first: u32, i: u32, k: vec4<f32>) -> f32 {
    var quad = first + i;
    var there = true;
    // Not so where quarters are whole octets and make up the whole head.
    if (quarter_quads() % 8u != 0u || quads() != 4u * quarter_quads()) {
        there = i < quarter_quads() && quad < quads();
        quad = min(quad, quads() - 1u);
    }
    let q = query[head * 48u + quad];
    return select(sum, fma(q.w, k.w, fma(q.z, k.z, fma(q.y, k.y, fma(q.x, k.x, sum)))), there);
}

// A thread's part of the scores of a position, for every head.
fn keep_scores(place: Place, position: u32, heads: u32, thread: u32) {
    let first = thread / 64u * quarter_quads();
    for (var i = 0u; i < quarter_quads(); i += 8u) {
        let k = load_octet(place, position, first + i);
        for (var head = 0u; head < heads; head++) {
            let at = thread / 64u * 512u + head * 64u + thread % 64u;
            var sum = 0.0;
            if (i > 0u) {
                sum = kept(0u, at);
            }
            sum = add_quad(sum, head, first, i, k.a);
            sum = add_quad(sum, head, first, i + 1u, k.b);
            sum = add_quad(sum, head, first, i + 2u, k.c);
            sum = add_quad(sum, head, first, i + 3u, k.d);
            sum = add_quad(sum, head, first, i + 4u, k.e);
            sum = add_quad(sum, head, first, i + 5u, k.f);
            sum = add_quad(sum, head, first, i + 6u, k.g);
            sum = add_quad(sum, head, first, i + 7u, k.h);
            keep(0u, at, sum);
        }
    }
}

// The quarters' sum.
fn score_of(head: u32, position: u32) -> f32 {
    let at = head * 64u + position;
    return ((kept(0u, at) + kept(128u, at)) + (kept(256u, at) + kept(384u, at))) * params.scale;
}

// The largest, and the sum, of what a head's 32 threads kept.
fn highest_of(head: u32) -> f32 {
    let at = MAXIMA + 8u * head;
    let low = max(max(work[at], work[at + 1u]), max(work[at + 2u], work[at + 3u]));
    let high = max(max(work[at + 4u], work[at + 5u]), max(work[at + 6u], work[at + 7u]));
    let four = max(low, high);
    return max(max(four.x, four.y), max(four.z, four.w));
}

fn total_of(head: u32) -> f32 {
    let at = SUMS + 8u * head;
    let low = (work[at] + work[at + 1u]) + (work[at + 2u] + work[at + 3u]);
    let high = (work[at + 4u] + work[at + 5u]) + (work[at + 6u] + work[at + 7u]);
    let four = low + high;
    return (four.x + four.y) + (four.z + four.w);
}

// The weights of two positions, 0 past the last.
fn keep_weights(head: u32, lane: u32, count: u32, low: f32, high: f32) {
    let a = select(0.0, low, lane < count);
    let b = select(0.0, high, lane + 32u < count);
    keep(WEIGHTS, head * 64u + lane, a);
    keep(WEIGHTS, head * 64u + lane + 32u, b);
    keep(SUMS, head * 32u + lane, a + b);
}
