// Sums of values by the weights that attend_scores.wgsl left in work. A thread has a quad of columns, and eight of a
// chunk's positions, whose values are on their way at once; all heads share what was loaded.

// Pieces of eight positions.
struct Values {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
    e: vec4<u32>,
    f: vec4<u32>,
    g: vec4<u32>,
    h: vec4<u32>,
}

// Positions from 8 · slot on; past the last, the last once more.
fn load_values(place: Place, start: u32, count: u32, slot: u32, quad: u32) -> Values {
    let each = pieces(DIM);
    let base = (params.vectors + vector_at(place, start)) * each + min(quad, quads() - 1u) / quads_per_piece();
    let p = min(vec4(8u * slot) + vec4(0u, 1u, 2u, 3u), vec4(count - 1u));
    let q = min(vec4(8u * slot) + vec4(4u, 5u, 6u, 7u), vec4(count - 1u));
    let i = base + p * each;
    let j = base + q * each;
    var values = Values(
        cache[i.x], cache[i.y], cache[i.z], cache[i.w], cache[j.x], cache[j.y], cache[j.z], cache[j.w],
    );
    if (ROPE) {
        let words = quad_words[min(quad, quads() - 1u) / quads_per_piece()];
        let own = fresh - start;
        values.a = select(values.a, words, p.x == own);
        values.b = select(values.b, words, p.y == own);
        values.c = select(values.c, words, p.z == own);
        values.d = select(values.d, words, p.w == own);
        values.e = select(values.e, words, q.x == own);
        values.f = select(values.f, words, q.y == own);
        values.g = select(values.g, words, q.z == own);
        values.h = select(values.h, words, q.w == own);
    }
    return values;
}

// Four columns of a value, its piece given.
fn value(words: vec4<u32>, place: Place, position: u32, quad: u32) -> vec4<f32> {
    if (CACHE < 2u) {
        return quad_of(words, quad, 1.0);
    }
    let scale = select(scales[params.vectors + vector_at(place, position)], fresh_scales.y, position == fresh);
    return quad_of(words, quad, scale);
}

// For one quad of columns of the head that the thread has. Weights past the last position are 0.
fn weighted(values: Values, place: Place, start: u32, count: u32, heads: u32, quad: u32, thread: u32) -> vec4<f32> {
    let slot = thread / 32u;
    let last = count - 1u;
    let a = value(values.a, place, start + min(8u * slot, last), quad);
    let b = value(values.b, place, start + min(8u * slot + 1u, last), quad);
    let c = value(values.c, place, start + min(8u * slot + 2u, last), quad);
    let d = value(values.d, place, start + min(8u * slot + 3u, last), quad);
    let e = value(values.e, place, start + min(8u * slot + 4u, last), quad);
    let f = value(values.f, place, start + min(8u * slot + 5u, last), quad);
    let g = value(values.g, place, start + min(8u * slot + 6u, last), quad);
    let h = value(values.h, place, start + min(8u * slot + 7u, last), quad);
    var own = vec4<f32>();
    for (var head = 0u; head < heads; head++) {
        let w = work[WEIGHTS + 16u * head + 2u * slot];
        let v = work[WEIGHTS + 16u * head + 2u * slot + 1u];
        var sum = fma(a, vec4(w.x), vec4(0.0));
        sum = fma(b, vec4(w.y), sum);
        sum = fma(c, vec4(w.z), sum);
        sum = fma(d, vec4(w.w), sum);
        sum = fma(e, vec4(v.x), sum);
        sum = fma(f, vec4(v.y), sum);
        sum = fma(g, vec4(v.z), sum);
        sum = fma(h, vec4(v.w), sum);
        work[PARTS + thread] = sum;
        workgroupBarrier();
        if (slot == head) {
            own = gather(thread % 32u);
        }
        workgroupBarrier();
    }
    return own;
}

fn gather(lane: u32) -> vec4<f32> {
    let at = PARTS + lane;
    let low = (work[at] + work[at + 32u]) + (work[at + 64u] + work[at + 96u]);
    let high = (work[at + 128u] + work[at + 160u]) + (work[at + 192u] + work[at + 224u]);
    return low + high;
}
