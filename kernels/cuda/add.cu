// x += y; y may be one row for all, a bias.
#include "device.cuh"
#include "args.cuh"

KERNEL(add, Add, 256, 4) {
    unsigned column = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    allow_successor();
    wait_for_predecessor();
    if (column >= args.columns) return;
    float* x = args.x + (size_t)row * args.columns + column;
    *x = *x + args.y[(size_t)row * args.y_pitch + column];
}
