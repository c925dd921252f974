// The rows that an op works on: the step's, or after select_outputs those that were kept.
struct Batch {
    // x: rows.
    count: vec4<u32>,
    // x: token, y: sequence, z: position, w: the row of the step that select_outputs puts here.
    row: array<vec4<u32>>,
}
