// Rotary position embedding of column i and of column i + dim / 2, rounded the same wherever it is done.
fn rotate(first: vec4<f32>, second: vec4<f32>, cosine: vec4<f32>, sine: vec4<f32>) -> array<vec4<f32>, 2> {
    return array(fma(first, cosine, -(second * sine)), fma(second, cosine, first * sine));
}
