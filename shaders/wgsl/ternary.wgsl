// Ternary, as t + 1: two blocks are one piece. Byte j of word i has column 16 p + 4 i + j at bits 2 p.
// Sums of codes stay below 2^24, which f32 holds exactly; the row's and the token's scales come at the end.
const PIECES = 2u;
const SCALED = false;
const ZERO = 4u;

fn block(first: u32, b: u32) -> Block {
    let word = weights[first + (b / 2u) * TILE] >> vec4(4u * (b % 2u));
    return Block(word & vec4(0x03030303u), (word >> vec4(2u)) & vec4(0x03030303u));
}
