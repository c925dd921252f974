// The non-linearity of gated feed-forward blocks.
#pragma once
#include "device.cuh"

// gate: 0 Silu, 1 squared relu.
__device__ inline float gated_value(float g, float u, unsigned gate) {
    if (gate == 1) {
        float positive = fmaxf(g, 0.0f);
        return positive * positive * u;
    }
    return __fdiv_rn(g, 1.0f + expf(-g)) * u;
}
