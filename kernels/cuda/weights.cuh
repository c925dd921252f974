// Scales and zeros of groups, as src/pack.rs lays them out: eight rows beside each other.
// FORMAT: 0 ternary, 1 int4, 2 int8, 3 f32, 4 f16, 5 bf16. ZERO: 0 symmetric, 1 zero point, 2 minimum. GROUP: units that share a scale; 0: the row.
#pragma once
#include "activation.cuh"

#define TILE 8

// Which of a row's scales a unit has.
__device__ inline unsigned slot_of(unsigned step, unsigned lane, unsigned per) {
#if GROUP == 0
    return 0;
#elif GROUP == 1
    return step * SEGMENTS + lane;
#else
    return (lane * per + step) / GROUP;
#endif
}

// The index of a row's scale in its plane.
__device__ inline size_t scale_at(unsigned row, unsigned slot, unsigned slots) {
    return ((size_t)(row / TILE) * slots + slot) * TILE + row % TILE;
}
