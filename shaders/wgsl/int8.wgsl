// INT8: a block of 32 columns is two pieces of 16 codes.
const PIECES = 8u;
const SCALED = true;
const ZERO = 0u;

fn block(first: u32, b: u32) -> Block {
    return Block(weights[first + 2u * b * TILE], weights[first + (2u * b + 1u) * TILE]);
}

// A unit as it is stored, loaded at once.
alias Unit = Blocks;

fn load_unit(first: u32) -> Unit {
    return Blocks(block(first, 0u), block(first, 1u), block(first, 2u), block(first, 3u));
}

fn blocks_of(unit: Unit) -> Blocks {
    return unit;
}
