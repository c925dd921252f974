// RoPE and the store of key and value, before attention of a step's only row. work holds the key and the value
// at first: 48 quads each.

// The row's position, where key and value come from this workgroup.
var<private> fresh: u32 = 0xffffffffu;
// They as the cache holds them; the value's words are in quad_words, which has no other use before the end.
var<workgroup> key_words: array<vec4<u32>, 48>;
// The key's and the value's, where they are INT8.
var<workgroup> fresh_scales: vec2<f32>;

// Queries to where scores look for them, key and value to work. A thread has a quad of a head's first half and
// the one that goes with it.
fn rotate_queries(first_head: u32, heads: u32, kv_head: u32, position: u32, thread: u32) {
    // At least one, for heads that are too small for this.
    let pairs = max(DIM / 8u, 1u);
    for (var i = thread; i < (heads + 2u) * pairs; i += 256u) {
        let head = i / pairs;
        let quad = i % pairs;
        // Keys come after all queries, values after all keys.
        let key_head = QUERY_HEADS + kv_head + select(0u, KV_HEADS, head > heads);
        let vector = select(key_head, first_head + head, head < heads);
        let first = four_of(vector, quad);
        let second = four_of(vector, quad + pairs);
        var both = rotate(first, second, four_angles(position, quad), four_angles(position, quad + pairs));
        if (head > heads) {
            both = array(first, second);
        }
        if (head < heads) {
            query[head * 48u + quad] = both[0];
            query[head * 48u + pairs + quad] = both[1];
        } else {
            work[(head - heads) * 48u + quad] = both[0];
            work[(head - heads) * 48u + pairs + quad] = both[1];
        }
    }
}

// Takes from work what the cache holds of key and value, a word to a thread, as rope_store_kv.wgsl does. One of the
// workgroups that share them stores them; none reads them from there, so that none waits for another.
fn take_key_and_value(place: Place, position: u32, stores: bool, thread: u32) {
    workgroupBarrier();
    let words = 4u * pieces(DIM);
    let index = vector_at(place, position);
    for (var i = thread; i < 2u * words; i += 256u) {
        let is_value = i >= words;
        let word = i % words;
        let first = select(0u, 48u, is_value);
        var inverse = 0.0;
        if (CACHE == 2u) {
            let span = span_of(largest_of(first));
            inverse = span.inverse;
            if (word == 0u) {
                fresh_scales[select(0u, 1u, is_value)] = span.scale;
                if (stores) {
                    scales[select(0u, params.vectors, is_value) + index] = span.scale;
                }
            }
        }
        let own = word_of(first, word, inverse);
        if (is_value) {
            quad_words[word / 4u][word % 4u] = own;
        } else {
            key_words[word / 4u][word % 4u] = own;
        }
        if (stores) {
            let value_at = (params.vectors + index) * pieces(DIM) + word / 4u;
            cache[select(key_piece(place, DIM, position, word / 4u), value_at, is_value)][word % 4u] = own;
        }
    }
    fresh = position;
}

fn largest_of(first: u32) -> u32 {
    var largest = 0u;
    for (var i = 0u; i < quads(); i++) {
        largest = max(largest, magnitude4(work[first + i]));
    }
    return largest;
}

// One, two or four columns of the vector in work that begins at first.
fn word_of(first: u32, word: u32, inverse: f32) -> u32 {
    if (CACHE == 0u) {
        return bitcast<u32>(kept(first, word));
    }
    if (CACHE == 1u) {
        return halves(kept(first, 2u * word), kept(first, 2u * word + 1u));
    }
    // The last piece may be longer than the vector.
    let four = select(vec4(0.0), work[first + min(word, quads() - 1u)], word < quads());
    return code4(four, inverse);
}
