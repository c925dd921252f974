// INT4: a block of 32 columns is one piece. Byte j of word i has column 4 i + j in its low nibble and
// column 16 + 4 i + j in its high one. What zero is: see weights.wgsl.
const PIECES = 4u;
const SCALED = true;
override ZERO: u32 = 1u;

fn block(first: u32, b: u32) -> Block {
    let word = weights[first + b * TILE];
    return Block(word & vec4(0x0f0f0f0fu), (word >> vec4(4u)) & vec4(0x0f0f0f0fu));
}
