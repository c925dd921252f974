// The KV cache of one layer: a head's vector of columns at each position, padded with zeros to 8 columns. CACHE: 0 f32, 1 f16, 2 int8
// with one scale for a vector.
#pragma once
#include "activation.cuh"

// Columns of the largest head.
#define MOST_DIM 256
#define CACHE_BYTES (CACHE == 0 ? 4 : CACHE == 1 ? 2 : 1)

__device__ inline size_t vector_bytes(unsigned dim) { return (dim + 7) / 8 * 8 * CACHE_BYTES; }

// The index of a vector.
__device__ inline size_t vector_at(unsigned sequence, unsigned head, unsigned heads, unsigned position, unsigned context) {
    return ((size_t)sequence * heads + head) * context + position;
}

// The scale of an INT8 vector, made by every warp for itself; of others 1.
__device__ inline Scale vector_scale(const float* x, unsigned dim, unsigned lane) {
    if (CACHE != 2) return {1.0f, 1.0f};
    unsigned largest = 0;
    for (unsigned i = lane; i < dim; i += 32) largest = max(largest, magnitude(x[i]));
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) largest = max(largest, shuffle_xor(largest, mask));
    return scale_of(largest);
}

// A float as it comes back from the cache; INT8: the code, without the scale.
__device__ inline float as_stored(float x, Scale scale) {
    if (CACHE == 1) return half_to_float(float_to_half(x));
    if (CACHE == 2) return (float)code_of(x, scale.inverse);
    return x;
}

// Threads store a vector of floats between them.
__device__ inline void store_vector(unsigned char* plane, float* scales, size_t at, const float* x, unsigned dim, Scale scale, unsigned thread, unsigned threads) {
    unsigned char* to = plane + at * vector_bytes(dim);
    if (CACHE == 2 && thread == 0) scales[at] = scale.scale;
    for (unsigned i = thread; i < dim; i += threads) {
        if (CACHE == 0) ((float*)to)[i] = x[i];
        if (CACHE == 1) ((unsigned short*)to)[i] = float_to_half(x[i]);
        if (CACHE == 2) ((signed char*)to)[i] = (signed char)code_of(x[i], scale.inverse);
    }
}

// Eight columns as they are stored.
struct Eight {
    uint4 first;
#if CACHE == 0
    uint4 second;
#endif
};

__device__ inline Eight load_eight(const unsigned char* vector, unsigned piece) {
    Eight v;
#if CACHE == 0
    v.first = *(const uint4*)(vector + piece * 32);
    v.second = *(const uint4*)(vector + piece * 32 + 16);
#elif CACHE == 1
    v.first = *(const uint4*)(vector + piece * 16);
#else
    uint2 half = *(const uint2*)(vector + piece * 8);
    v.first = make_uint4(half.x, half.y, 0, 0);
#endif
    return v;
}

__device__ inline void widen(const Eight& v, float (&x)[8]) {
    unsigned words[4] = {v.first.x, v.first.y, v.first.z, v.first.w};
#if CACHE == 0
    unsigned more[4] = {v.second.x, v.second.y, v.second.z, v.second.w};
#endif
    UNROLL
    for (int i = 0; i < 4; i++) {
#if CACHE == 0
        x[i] = bits_to_float(words[i]);
        x[4 + i] = bits_to_float(more[i]);
#elif CACHE == 1
        x[2 * i] = half_to_float((unsigned short)words[i]);
        x[2 * i + 1] = half_to_float((unsigned short)(words[i] >> 16));
#else
        x[i] = (float)(signed char)(words[0] >> (8 * i));
        x[4 + i] = (float)(signed char)(words[1] >> (8 * i));
#endif
    }
}

// Two neighbouring columns.
#if CACHE == 0
typedef float2 Pair;
__device__ inline float2 widen(Pair v) { return v; }
#elif CACHE == 1
typedef unsigned Pair;
__device__ inline float2 widen(Pair v) { return make_float2(half_to_float((unsigned short)v), half_to_float((unsigned short)(v >> 16))); }
#else
typedef unsigned short Pair;
__device__ inline float2 widen(Pair v) { return make_float2((float)(signed char)v, (float)(signed char)(v >> 8)); }
#endif

__device__ inline Pair load_pair(const unsigned char* vector, unsigned pair) { return *((const Pair*)vector + pair); }
