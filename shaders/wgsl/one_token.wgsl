// One token at a time.
alias Values = f32;
const TOKENS = 1u;

// What a unit of weights is multiplied with: blocks of codes, and their scales and sums of codes.
struct Inputs {
    codes: Blocks,
    a: vec2<f32>,
    b: vec2<f32>,
    c: vec2<f32>,
    d: vec2<f32>,
}

// All of it is on its way at once.
fn load_inputs(token: u32, unit: u32) -> Inputs {
    let at = 8u * (token * params.units + unit);
    let a = Block(activations[at], activations[at + 1u]);
    let b = Block(activations[at + 2u], activations[at + 3u]);
    let c = Block(activations[at + 4u], activations[at + 5u]);
    let d = Block(activations[at + 6u], activations[at + 7u]);
    let s = at / 2u;
    return Inputs(Blocks(a, b, c, d), spans[s], spans[s + 1u], spans[s + 2u], spans[s + 3u]);
}

fn add_block(sum: Values, w: Block, x: Block, span: vec2<f32>, scale: f32, zero: f32) -> Values {
    let dots = f32(dot16(w.low, x.low) + dot16(w.high, x.high));
    return add_product(sum, weigh(dots, span.y, scale, zero), span.x);
}

fn add_unit(start: Values, x: Inputs, w: Blocks, scale: vec4<f32>, zero: vec4<f32>) -> Values {
    var sum = add_block(start, w.a, x.codes.a, x.a, scale.x, zero.x);
    sum = add_block(sum, w.b, x.codes.b, x.b, scale.y, zero.y);
    sum = add_block(sum, w.c, x.codes.c, x.c, scale.z, zero.z);
    return add_block(sum, w.d, x.codes.d, x.d, scale.w, zero.w);
}

// A ternary product's scale.
fn token_scale(token: u32) -> Values {
    return spans[token * 4u * params.units].x;
}

fn store(token: u32, row: u32, values: Values) {
    out[token * params.stride + row] = values;
}
