// Quantised activations: [token, column / 16], 16 codes each.
@group(0) @binding(5) var<storage, read> activations: array<vec4<u32>>;
// [token, block]: the scale, and the sum of the codes.
@group(0) @binding(6) var<storage, read> spans: array<vec2<f32>>;
