// The rows whose logits are wanted, to the front of out.
#include "device.cuh"
#include "args.cuh"

KERNEL(select_rows, SelectRows, 256, 4) {
    unsigned column = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    allow_successor();
    wait_for_predecessor();
    if (column >= args.columns) return;
    args.out[(size_t)row * args.columns + column] = args.x[(size_t)args.step[row].source * args.columns + column];
}
