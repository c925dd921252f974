// RMSNorm of each query head and each key head, in place in rows of query, key and value. A block has a head of a row.
#include "norm.cuh"

#define MOST_UNITS 64
#define THREADS 128

KERNEL(head_norm, HeadNorm, THREADS, 4) {
    SHARED(float, squares, [MOST_UNITS]);
    unsigned thread = threadIdx.x, quad = thread % 8, head = blockIdx.x, row = blockIdx.y;
    unsigned units = (args.dim + UNIT - 1) / UNIT, padded = (units + 15) / 16 * 16;
    allow_successor();
    wait_for_predecessor();
    float* x = args.qkv + ((size_t)row * (args.query_heads + 2 * args.kv_heads) + head) * args.dim;
    const float* weight = head < args.query_heads ? args.query : args.key;
    for (unsigned unit = thread / 8; unit < padded; unit += THREADS / 8) {
        float sum = unit_squares(load_quad(x, unit * UNIT + quad * 4, args.dim));
        if (quad == 0 && unit < units) squares[unit] = sum;
    }
    __syncthreads();
    float scale = norm_scale(row_squares(squares, units, thread % 32), args.dim, args.eps);
    for (unsigned column = thread * 4; column < args.dim; column += THREADS * 4)
        store_floats(x, column, args.dim, normalize(load_quad(x, column, args.dim), scale, load_quad(weight, column, args.dim)));
}
