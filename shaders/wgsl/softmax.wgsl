// Attention over one chunk of positions or several: exponentials are relative to the highest score seen.
struct Part {
    highest: f32,
    total: f32,
}

// The factors by which a part's sums and a later part's are joined: old, new.
fn factors(a: f32, b: f32) -> vec2<f32> {
    let highest = max(a, b);
    return vec2(exp(a - highest), exp(b - highest));
}

fn join(a: Part, b: Part, by: vec2<f32>) -> Part {
    return Part(max(a.highest, b.highest), fma(a.total, by.x, b.total * by.y));
}

// Positions of a chunk.
const CHUNK = 64u;
