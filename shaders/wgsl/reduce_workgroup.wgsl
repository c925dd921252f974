// Sums and maxima over a workgroup of 256 threads, through workgroup memory. reduce_subgroup.wgsl does the
// same with subgroups.
struct Thread {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> partial_sums: array<f32, 256>;
var<workgroup> partial_maxima: array<u32, 256>;

fn sum_of_all(thread: Thread, x: f32) -> f32 {
    partial_sums[thread.index] = x;
    for (var half = 128u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if (thread.index < half) {
            partial_sums[thread.index] += partial_sums[thread.index + half];
        }
    }
    workgroupBarrier();
    return partial_sums[0];
}

fn max_of_all(thread: Thread, x: u32) -> u32 {
    partial_maxima[thread.index] = x;
    for (var half = 128u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if (thread.index < half) {
            partial_maxima[thread.index] = max(partial_maxima[thread.index], partial_maxima[thread.index + half]);
        }
    }
    workgroupBarrier();
    return partial_maxima[0];
}
