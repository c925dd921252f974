// What the two kernels of attention have in common: chunks, their partial sums, and where a result goes.
#pragma once
#include "cache.cuh"

#define CHUNK 64
#define LOWEST bits_to_float(0xff7fffffu)

// A head's sums of a chunk: dim columns, the largest score, the sum of the weights.
__device__ inline float* partial_of(const Attend& args, unsigned row, unsigned head, unsigned dim, unsigned chunk) {
    return args.partials + (((size_t)row * args.query_heads + head) * args.chunks + chunk) * (dim + 2);
}

// A column of a row's result, counted from that of its first head; whole warps come here, with 32 neighbours.
__device__ inline void store_result(const Attend& args, unsigned row, unsigned column, unsigned dim, float value) {
    if (args.out) args.out[(size_t)row * (args.query_heads * dim) + column] = value;
    if (QUANTIZE == 2) {
        signed char* codes = args.codes + (size_t)row * args.per * (SEGMENTS * UNIT);
        quantize_lane(codes, args.spans + (size_t)row * args.per * SEGMENTS, column / UNIT, args.per, column % UNIT, value);
    }
}

__device__ inline float largest_of_warp(float x) {
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

__device__ inline float sum_of_warp(float x) {
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}
