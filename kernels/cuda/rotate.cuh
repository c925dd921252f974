// Rotary position embedding in the "half" pairing: column i goes with i + dim / 2. A row of the table: cosines, then sines.
#pragma once
#include "device.cuh"

// Columns i and i + dim / 2 of a head, rotated.
__device__ inline float2 rotated(const float* x, const float* angles, unsigned i, unsigned dim) {
    float a = x[i], b = x[i + dim / 2], cosine = angles[i], sine = angles[i + dim / 2];
    return make_float2(a * cosine - b * sine, b * cosine + a * sine);
}
