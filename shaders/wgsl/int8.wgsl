// INT8: a block of 32 columns is two pieces of 16 codes.
const PIECES = 8u;
const SCALED = true;
const ZERO = 0u;

fn block(first: u32, b: u32) -> Block {
    return Block(weights[first + 2u * b * TILE], weights[first + (2u * b + 1u) * TILE]);
}
