// Four tokens at a time; past the last, the last once more.
alias Values = vec4<f32>;
const TOKENS = 4u;

fn four(token: u32) -> vec4<u32> {
    return min(vec4(token) + vec4(0u, 1u, 2u, 3u), vec4(batch.count.x - 1u));
}

fn token_dot(block: Block, a: u32) -> f32 {
    return f32(dot16(block.low, activations[a]) + dot16(block.high, activations[a + 1u]));
}

fn token_dots(block: Block, token: u32, at: u32) -> Values {
    let a = 2u * (four(token) * 4u * params.units + at);
    return vec4(token_dot(block, a.x), token_dot(block, a.y), token_dot(block, a.z), token_dot(block, a.w));
}

// The blocks' scales and sums of codes.
struct Spans {
    scale: Values,
    sum: Values,
}

fn token_spans(token: u32, at: u32) -> Spans {
    let s = four(token) * 4u * params.units + at;
    let a = spans[s.x];
    let b = spans[s.y];
    let c = spans[s.z];
    let d = spans[s.w];
    return Spans(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
}

fn store(token: u32, row: u32, values: Values) {
    for (var i = 0u; i < min(4u, batch.count.x - token); i++) {
        out[(token + i) * params.stride + row] = values[i];
    }
}
