// One token at a time.
alias Values = f32;
const TOKENS = 1u;

fn token_dots(block: Block, token: u32, at: u32) -> Values {
    let a = 2u * (token * 4u * params.units + at);
    return f32(dot16(block.low, activations[a]) + dot16(block.high, activations[a + 1u]));
}

// The blocks' scales (x) and sums of codes (y).
struct Spans {
    scale: Values,
    sum: Values,
}

fn token_spans(token: u32, at: u32) -> Spans {
    let span = spans[token * 4u * params.units + at];
    return Spans(span.x, span.y);
}

fn store(token: u32, row: u32, values: Values) {
    out[token * params.stride + row] = values;
}
