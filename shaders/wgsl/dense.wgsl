// A matrix of floats [rows, columns] on the device, in tiles and units as weights.wgsl has them.
override TILE: u32 = 16u;
// 0: f32, 1: f16, 2: bf16.
override FLOAT: u32 = 0u;

// [tile, unit, piece, row of the tile].
@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

// Four columns of a row: number quad of a unit's 32.
fn quad(tile: u32, lane: u32, unit: u32, quad: u32) -> vec4<f32> {
    let first = (tile * params.units + unit) * select(16u, 32u, FLOAT == 0u) * TILE + lane;
    if (FLOAT == 0u) {
        return bitcast<vec4<f32>>(weights[first + quad * TILE]);
    }
    let piece = weights[first + quad / 2u * TILE];
    let pair = select(piece.xy, piece.zw, quad % 2u == 1u);
    if (FLOAT == 1u) {
        return vec4(unpack2x16float(pair.x), unpack2x16float(pair.y));
    }
    return bitcast<vec4<f32>>(vec4(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
}
