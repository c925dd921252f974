// Ternary, as t + 1: two blocks are one piece. Byte j of word i has column 16 p + 4 i + j at bits 2 p.
// Sums of codes stay below 2^24, which f32 holds exactly; the row's and the token's scales come at the end.
const PIECES = 2u;
const SCALED = false;
const ZERO = 4u;

fn block(first: u32, b: u32) -> Block {
    return unpack(weights[first + (b / 2u) * TILE] >> vec4(4u * (b % 2u)));
}

fn unpack(word: vec4<u32>) -> Block {
    return Block(word & vec4(0x03030303u), (word >> vec4(2u)) & vec4(0x03030303u));
}

// A unit as it is stored, loaded at once.
struct Unit {
    a: vec4<u32>,
    b: vec4<u32>,
}

fn load_unit(first: u32) -> Unit {
    return Unit(weights[first], weights[first + TILE]);
}

fn blocks_of(unit: Unit) -> Blocks {
    return Blocks(unpack(unit.a), unpack(unit.a >> vec4(4u)), unpack(unit.b), unpack(unit.b >> vec4(4u)));
}
