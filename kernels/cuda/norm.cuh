// The sum of squares of a row, in one order whatever the block: quads, then units of 32 columns, then every 32nd unit, then lanes.
#pragma once
#include "activation.cuh"

// The sum of a unit's squares, in all eight lanes that share it.
__device__ inline float unit_squares(float4 x) {
    float sum = (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    sum += shuffle_xor(sum, 4);
    return sum;
}

// The sum over units, in every lane of a warp; squares: of each unit.
__device__ inline float row_squares(const float* squares, unsigned units, unsigned lane) {
    float sum = 0.0f;
    for (unsigned unit = lane; unit < units; unit += 32) sum += squares[unit];
    sum += shuffle_xor(sum, 16);
    sum += shuffle_xor(sum, 8);
    sum += shuffle_xor(sum, 4);
    sum += shuffle_xor(sum, 2);
    sum += shuffle_xor(sum, 1);
    return sum;
}

__device__ inline float norm_scale(float squares, unsigned columns, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, (float)columns) + eps));
}

__device__ inline float4 normalize(float4 x, float scale, float4 weight) {
    return make_float4(x.x * scale * weight.x, x.y * scale * weight.y, x.z * scale * weight.z, x.w * scale * weight.w);
}
