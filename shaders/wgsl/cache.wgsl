// The KV cache of one layer. Keys are read by neighbouring threads with neighbouring positions, so 16 bytes
// are stored for each of 32 positions before the next 16 bytes; values are read by neighbouring threads with
// neighbouring columns, so a vector is in one piece.

// 0: f32, 1: f16, 2: int8.
override CACHE: u32 = 1u;

// Columns of 16 bytes.
fn columns_per_piece() -> u32 {
    return 4u << CACHE;
}

// Pieces of a head vector of dim columns.
fn pieces(dim: u32) -> u32 {
    return (dim + columns_per_piece() - 1u) / columns_per_piece();
}

// The index of a head vector at a position, among all of the cache; contexts are multiples of 32.
fn vector_at(place: Place, position: u32) -> u32 {
    return (place.sequence * place.heads + place.head) * place.context + position;
}

// The index of a key's piece.
fn key_piece(place: Place, dim: u32, position: u32, piece: u32) -> u32 {
    let group = vector_at(place, position) / 32u;
    return (group * pieces(dim) + piece) * 32u + position % 32u;
}

// Which vectors of the cache: a sequence's, of a key/value head.
struct Place {
    sequence: u32,
    head: u32,
    heads: u32,
    context: u32,
}

// Four columns from the piece that holds them; scale: of an INT8 vector.
fn quad_of(piece: vec4<u32>, quad: u32, scale: f32) -> vec4<f32> {
    if (CACHE == 0u) {
        return bitcast<vec4<f32>>(piece);
    }
    if (CACHE == 1u) {
        let pair = select(piece.xy, piece.zw, quad % 2u == 1u);
        return vec4(unpack2x16float(pair.x), unpack2x16float(pair.y));
    }
    return vec4<f32>(unpack4xI8(piece[quad % 4u])) * scale;
}

fn quads_per_piece() -> u32 {
    return 1u << CACHE;
}
