// Over all threads of a block.
#pragma once
#include "device.cuh"

__device__ inline unsigned block_max(unsigned x) {
    SHARED(unsigned, warps, [32]);
    for (int mask = 16; mask > 0; mask /= 2) x = max(x, shuffle_xor(x, mask));
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    unsigned largest = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) largest = max(largest, warps[warp]);
    return largest;
}
