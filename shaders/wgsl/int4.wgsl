// INT4: a block of 32 columns is one piece. Byte j of word i has column 4 i + j in its low nibble and
// column 16 + 4 i + j in its high one. What zero is: see weights.wgsl.
const PIECES = 4u;
const SCALED = true;
override ZERO: u32 = 1u;

fn block(first: u32, b: u32) -> Block {
    return unpack(weights[first + b * TILE]);
}

fn unpack(word: vec4<u32>) -> Block {
    return Block(word & vec4(0x0f0f0f0fu), (word >> vec4(4u)) & vec4(0x0f0f0f0fu));
}

// A unit as it is stored, loaded at once.
struct Unit {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

fn load_unit(first: u32) -> Unit {
    return Unit(weights[first], weights[first + TILE], weights[first + 2u * TILE], weights[first + 3u * TILE]);
}

fn blocks_of(unit: Unit) -> Blocks {
    return Blocks(unpack(unit.a), unpack(unit.b), unpack(unit.c), unpack(unit.d));
}
