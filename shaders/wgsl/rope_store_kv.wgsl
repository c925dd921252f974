// Rotary position embedding of query and key heads in place (ROPE), and the store of keys and values
// (STORE). A workgroup has one head of one row.
requires packed_4x8_integer_dot_product;

struct Params {
    dim: u32,
    query_heads: u32,
    kv_heads: u32,
    context: u32,
    // Vectors of keys in the cache.
    scale_rows: u32,
}

override ROPE: bool = true;
override STORE: bool = true;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: Batch;
@group(0) @binding(2) var<storage, read_write> qkv: array<f32>;
// Row p: cos[dim / 2] | sin[dim / 2] of position p.
@group(0) @binding(3) var<storage, read> angles: array<f32>;
@group(0) @binding(4) var<storage, read_write> keys: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> values: array<vec4<u32>>;
// Scales of INT8 vectors: keys', then values'.
@group(0) @binding(6) var<storage, read_write> scales: array<f32>;

//#include batch
//#include cache
//#include codes

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
    let first = qkv[at + i];
    let second = qkv[at + half + i];
    return select(first * cosine - second * sine, second * cosine + first * sine, column >= half);
}

// Rounds to nearest even; pack2x16float may round as it likes.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    // 65520 and more round to infinity.
    if (size >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    // Below 2^-14 halves are multiples of 2^-24.
    if (size < 0x38800000u) {
        return sign | u32(round(bitcast<f32>(size) * 16777216.0));
    }
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
}

fn halves(x: f32, y: f32) -> u32 {
    return half_bits(x) | (half_bits(y) << 16u);
}

// 16 bytes of the cache from the vector.
fn piece_of(piece: u32, inverse: f32) -> vec4<u32> {
    if (CACHE == 0u) {
        return bitcast<vec4<u32>>(vector[piece]);
    }
    if (CACHE == 1u) {
        let a = vector[2u * piece];
        let b = vector[2u * piece + 1u];
        return vec4(halves(a.x, a.y), halves(a.z, a.w), halves(b.x, b.y), halves(b.z, b.w));
    }
    let at = 4u * piece;
    return vec4(
        code4(vector[at], inverse),
        code4(vector[at + 1u], inverse),
        code4(vector[at + 2u], inverse),
        code4(vector[at + 3u], inverse),
    );
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
        if (is_value) {
            values[index * pieces(dim) + piece] = piece_of(piece, span.inverse);
        } else {
            keys[key_piece(place, dim, row.z, piece)] = piece_of(piece, span.inverse);
        }
    }
    if (CACHE == 2u && thread == 0u) {
        scales[select(0u, params.scale_rows, is_value) + index] = span.scale;
    }
}
