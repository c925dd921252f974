// A quantised matrix [rows, columns] on the device. A tile is TILE rows, 8 or 16; a unit is 128 columns, four blocks
// of 32. Neighbouring threads have neighbouring rows, so a piece of 16 bytes is stored for each row of the
// tile before the next piece: a thread's loads are its neighbours' continued.
override TILE: u32 = 16u;

// Blocks that share a scale; 0: the whole row does.
override GROUP: u32 = 1u;

// [tile, unit, piece, row of the tile].
@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;
// [tile, pair of groups, row of the tile], two f16 each; a ternary matrix has one f32 for each row.
@group(0) @binding(3) var<storage, read> scales: array<u32>;
// As scales: zero points or minima.
@group(0) @binding(4) var<storage, read> zeros: array<u32>;

// 32 codes of one row, a byte each.
struct Block {
    low: vec4<u32>,
    high: vec4<u32>,
}

// A unit.
struct Blocks {
    a: Block,
    b: Block,
    c: Block,
    d: Block,
}

// The word that holds a unit's groups, in scales or zeros.
fn group_word(tile: u32, lane: u32, unit: u32) -> u32 {
    var word = unit;
    var words = params.units;
    if (GROUP == 0u) {
        word = 0u;
        words = 1u;
    } else if (GROUP == 1u) {
        word = 2u * unit;
        words = 2u * params.units;
    } else if (GROUP == 4u) {
        word = unit / 2u;
        words = (params.units + 1u) / 2u;
    }
    return (tile * words + word) * TILE + lane;
}

// The four blocks' values from the group's words.
fn spread(first: u32, second: u32, unit: u32) -> vec4<f32> {
    let pair = unpack2x16float(first);
    if (GROUP == 1u) {
        return vec4(pair, unpack2x16float(second));
    }
    if (GROUP == 2u) {
        return pair.xxyy;
    }
    return vec4(select(pair.x, pair.y, GROUP == 4u && unit % 2u == 1u));
}

fn unit_scales(tile: u32, lane: u32, unit: u32) -> vec4<f32> {
    if (!SCALED) {
        return vec4(1.0);
    }
    let at = group_word(tile, lane, unit);
    return spread(scales[at], scales[at + select(0u, TILE, GROUP == 1u)], unit);
}

fn unit_zeros(tile: u32, lane: u32, unit: u32) -> vec4<f32> {
    if (ZERO < POINT) {
        return vec4(0.0);
    }
    let at = group_word(tile, lane, unit);
    return spread(zeros[at], zeros[at + select(0u, TILE, GROUP == 1u)], unit);
}

// The index of a unit's first piece.
fn first_piece(tile: u32, lane: u32, unit: u32) -> u32 {
    return (tile * params.units + unit) * PIECES * TILE + lane;
}

const NONE = 0u;
const EIGHT = 1u;
const POINT = 2u;
const MINIMUM = 3u;
