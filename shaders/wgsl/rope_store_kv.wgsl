// Rotary position embedding of query and key heads in place (ROPE), and the store of keys and values
// (STORE). A workgroup has one head of one row.
requires packed_4x8_integer_dot_product;

struct Params {
    dim: u32,
    query_heads: u32,
    kv_heads: u32,
    context: u32,
    // Vectors of keys in the cache: values come after them.
    vectors: u32,
}

override ROPE: bool = true;
override STORE: bool = true;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(2) var<storage, read_write> qkv: array<f32>;
// Row p: cos[dim / 2] | sin[dim / 2] of position p.
@group(0) @binding(3) var<storage, read> angles: array<f32>;
@group(0) @binding(4) var<storage, read_write> cache: array<vec4<u32>>;
// Scales of INT8 vectors: keys', then values'.
@group(0) @binding(5) var<storage, read_write> scales: array<f32>;

//#include batch
//#include cache
//#include cache_store
//#include rotate

// The head; columns past the last are 0.
var<workgroup> vector: array<vec4<f32>, 64>;
var<workgroup> partial_maxima: array<u32, 64>;

fn column_of(column: u32) -> f32 {
    return vector[column / 4u][column % 4u];
}

// Column i goes with i + dim / 2.
fn rotated(at: u32, position: u32, column: u32) -> f32 {
    let half = params.dim / 2u;
    let i = column % half;
    let cosine = angles[position * params.dim + i];
    let sine = angles[position * params.dim + half + i];
    let both = rotate(vec4(qkv[at + i]), vec4(qkv[at + half + i]), vec4(cosine), vec4(sine));
    return select(both[0].x, both[1].x, column >= half);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head = group.x;
    let row = batch.row[group.y];
    let dim = params.dim;
    let at = (group.y * (params.query_heads + 2u * params.kv_heads) + head) * dim;
    let turned = ROPE && head < params.query_heads + params.kv_heads;
    // All is read before anything is written.
    var largest = 0u;
    var four = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        let column = 4u * thread + i;
        if (column < dim) {
            if (turned) {
                four[i] = rotated(at, row.z, column);
            } else {
                four[i] = qkv[at + column];
            }
            largest = max(largest, magnitude(four[i]));
        }
    }
    vector[thread] = four;
    partial_maxima[thread] = largest;
    storageBarrier();
    workgroupBarrier();
    if (turned) {
        for (var column = thread; column < dim; column += 64u) {
            qkv[at + column] = column_of(column);
        }
    }
    if (!STORE || head < params.query_heads) {
        return;
    }
    var span = Span(0.0, 0.0);
    if (CACHE == 2u) {
        for (var i = 0u; i < 64u; i++) {
            largest = max(largest, partial_maxima[i]);
        }
        span = span_of(largest);
    }
    let is_value = head >= params.query_heads + params.kv_heads;
    let kv_head = (head - params.query_heads) % params.kv_heads;
    let place = Place(row.y, kv_head, params.kv_heads, params.context);
    let index = vector_at(place, row.z);
    for (var piece = thread; piece < pieces(dim); piece += 64u) {
        let quad = piece * quads_per_piece();
        let words = piece_of(vector[quad], vector[quad + 1u], vector[quad + 2u], vector[quad + 3u], span.inverse);
        let value_at = (params.vectors + index) * pieces(dim) + piece;
        cache[select(key_piece(place, dim, row.z, piece), value_at, is_value)] = words;
    }
    if (CACHE == 2u && thread == 0u) {
        scales[select(0u, params.vectors, is_value) + index] = span.scale;
    }
}
