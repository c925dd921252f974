// RoPE and the store of key and value, before attention of a step's only row. parts holds the key and the value
// while they are stored: 48 quads each.
fn four_of(at: u32) -> vec4<f32> {
    return vec4(qkv[at], qkv[at + 1u], qkv[at + 2u], qkv[at + 3u]);
}

fn four_angles(at: u32) -> vec4<f32> {
    return vec4(angles[at], angles[at + 1u], angles[at + 2u], angles[at + 3u]);
}

// Queries to where scores look for them, key and value to parts. A thread has a quad of a head's first half and
// the one that goes with it.
fn rotate_queries(first_head: u32, heads: u32, kv_head: u32, position: u32, thread: u32) {
    let pairs = params.dim / 8u;
    let half = params.dim / 2u;
    for (var i = thread; i < (heads + 2u) * pairs; i += 256u) {
        let vector = i / pairs;
        let quad = i % pairs;
        // Keys come after all queries, values after all keys.
        let key_head = params.query_heads + kv_head + select(0u, params.kv_heads, vector > heads);
        let at = select(key_head, first_head + vector, vector < heads) * params.dim + 4u * quad;
        let first = four_of(at);
        let second = four_of(at + half);
        let angle = position * params.dim + 4u * quad;
        var both = rotate(first, second, four_angles(angle), four_angles(angle + half));
        if (vector > heads) {
            both = array(first, second);
        }
        if (vector < heads) {
            query[vector * 48u + quad] = both[0];
            query[vector * 48u + pairs + quad] = both[1];
        } else {
            parts[(vector - heads) * 48u + quad] = both[0];
            parts[(vector - heads) * 48u + pairs + quad] = both[1];
        }
    }
}

// Stores parts: as rope_store_kv.wgsl does.
fn store_key_and_value(place: Place, position: u32, thread: u32) {
    workgroupBarrier();
    let count = pieces(params.dim);
    let index = vector_at(place, position);
    if (thread < 2u * count) {
        let is_value = thread >= count;
        let piece = thread % count;
        let first = select(0u, 48u, is_value);
        var span = Span(0.0, 0.0);
        if (CACHE == 2u) {
            var largest = 0u;
            for (var i = 0u; i < params.dim / 4u; i++) {
                largest = max(largest, magnitude4(parts[first + i]));
            }
            span = span_of(largest);
            if (piece == 0u) {
                scales[select(0u, params.vectors, is_value) + index] = span.scale;
            }
        }
        let quad = piece * quads_per_piece();
        let past = params.dim / 4u;
        let a = parts[first + quad];
        let b = parts_before(first, quad + 1u, past);
        let c = parts_before(first, quad + 2u, past);
        let d = parts_before(first, quad + 3u, past);
        let value_at = (params.vectors + index) * count + piece;
        cache[select(key_piece(place, params.dim, position, piece), value_at, is_value)] = piece_of(a, b, c, d, span.inverse);
    }
    storageBarrier();
}

// A vector's quad; 0 past the last.
fn parts_before(first: u32, quad: u32, past: u32) -> vec4<f32> {
    return select(vec4(0.0), parts[first + min(quad, past - 1u)], quad < past);
}
