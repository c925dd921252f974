// Four tokens at a time; past the last, the last once more.
alias Values = vec4<f32>;
const TOKENS = 4u;

// Where the tokens' unit begins, in units.
struct Inputs {
    at: vec4<u32>,
}

fn four(token: u32) -> vec4<u32> {
    return min(vec4(token) + vec4(0u, 1u, 2u, 3u), vec4(batch.count.x - 1u));
}

fn load_inputs(token: u32, unit: u32) -> Inputs {
    return Inputs(four(token) * params.units + unit);
}

fn token_dot(block: Block, a: u32) -> f32 {
    return f32(dot16(block.low, activations[a]) + dot16(block.high, activations[a + 1u]));
}

// b: which block of the unit.
fn add_block(sum: Values, w: Block, x: Inputs, b: u32, scale: f32, zero: f32) -> Values {
    let a = 8u * x.at + 2u * b;
    let dots = vec4(token_dot(w, a.x), token_dot(w, a.y), token_dot(w, a.z), token_dot(w, a.w));
    let s = 4u * x.at + b;
    let each = array(spans[s.x], spans[s.y], spans[s.z], spans[s.w]);
    let sums = vec4(each[0].y, each[1].y, each[2].y, each[3].y);
    let scales = vec4(each[0].x, each[1].x, each[2].x, each[3].x);
    return add_product(sum, weigh(dots, sums, Values(scale), Values(zero)), scales);
}

fn add_unit(start: Values, x: Inputs, w: Blocks, scale: vec4<f32>, zero: vec4<f32>) -> Values {
    var sum = add_block(start, w.a, x, 0u, scale.x, zero.x);
    sum = add_block(sum, w.b, x, 1u, scale.y, zero.y);
    sum = add_block(sum, w.c, x, 2u, scale.z, zero.z);
    return add_block(sum, w.d, x, 3u, scale.w, zero.w);
}

// A ternary product's scales.
fn token_scale(token: u32) -> Values {
    let s = four(token) * 4u * params.units;
    return vec4(spans[s.x].x, spans[s.y].x, spans[s.z].x, spans[s.w].x);
}

fn store(token: u32, row: u32, values: Values) {
    for (var i = 0u; i < min(4u, batch.count.x - token); i++) {
        out[(token + i) * params.stride + row] = values[i];
    }
}
