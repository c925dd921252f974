// A copy to measure the memory by.
#include "device.cuh"
#include "args.cuh"

KERNEL(copy, Copy16, 256, 4) {
    unsigned long long stride = (unsigned long long)gridDim.x * 256, at = blockIdx.x * 256ull + threadIdx.x;
    allow_successor();
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
