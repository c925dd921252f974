// Sums and maxima over a workgroup of 256 threads, through subgroups. reduce_workgroup.wgsl does the same
// without. (naga takes subgroup functions without an enable directive, and none with it.)
struct Thread {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(num_subgroups) subgroups: u32,
}

var<workgroup> partial_sums: array<f32, 256>;
var<workgroup> partial_maxima: array<u32, 256>;

fn sum_of_all(thread: Thread, x: f32) -> f32 {
    let part = subgroupAdd(x);
    if (thread.lane == 0u) {
        partial_sums[thread.subgroup] = part;
    }
    workgroupBarrier();
    // Every subgroup adds up all of them, the same way.
    var sum = 0.0;
    for (var i = thread.lane; i < thread.subgroups; i += thread.size) {
        sum += partial_sums[i];
    }
    return subgroupAdd(sum);
}

fn max_of_all(thread: Thread, x: u32) -> u32 {
    let part = subgroupMax(x);
    if (thread.lane == 0u) {
        partial_maxima[thread.subgroup] = part;
    }
    workgroupBarrier();
    var largest = 0u;
    for (var i = thread.lane; i < thread.subgroups; i += thread.size) {
        largest = max(largest, partial_maxima[i]);
    }
    return subgroupMax(largest);
}
