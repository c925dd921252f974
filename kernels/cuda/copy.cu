// A copy: of a step's rows to the device, and to measure the memory by.
#include "device.cuh"
#include "args.cuh"

KERNEL(copy, Copy16, 256, 4) {
    unsigned long long stride = (unsigned long long)gridDim.x * 256, at = blockIdx.x * 256ull + threadIdx.x;
    // No successor is allowed in: attention looks at the step's row before it waits for its predecessor, some launches after this
    // one, and each of those might be there already if this one had not ended.
    wait_for_predecessor();
    for (; at + 3 * stride < args.vectors; at += 4 * stride) {
        uint4 a = load_once(args.from + at), b = load_once(args.from + at + stride);
        uint4 c = load_once(args.from + at + 2 * stride), d = load_once(args.from + at + 3 * stride);
        args.to[at] = a;
        args.to[at + stride] = b;
        args.to[at + 2 * stride] = c;
        args.to[at + 3 * stride] = d;
    }
    for (; at < args.vectors; at += stride) args.to[at] = args.from[at];
}
