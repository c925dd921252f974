// Quantised activations: where a unit of 32 columns lies, and how it is made. Eight neighbouring lanes share a unit, four columns each.
#pragma once
#include "device.cuh"
#include "args.cuh"

// Lanes that share a product's row; each has a segment of it.
#define SEGMENTS 16
#define UNIT 32

// PLAIN: units lie in their order, for products of many tokens; otherwise segments lie beside each other, so that 16 lanes read 16 neighbours.
#ifndef PLAIN
#define PLAIN 0
#endif

// Where a unit is.
__device__ inline unsigned place_of(unsigned unit, unsigned per) { return PLAIN ? unit : unit % per * SEGMENTS + unit / per; }

// The byte of a code, by the place of its unit.
__device__ inline unsigned code_byte(unsigned place, unsigned column) {
    if (PLAIN) return place * UNIT + column;
    unsigned step = place / SEGMENTS, lane = place % SEGMENTS;
    return ((step * 2 + column / 16) * SEGMENTS + lane) * 16 + column % 16;
}

struct Scale {
    float scale, inverse;
};

// backends/api/src/activation.rs, `span_scale`; largest: the bits of max|x|, which order as the numbers do, NaN above all.
__device__ inline Scale scale_of(unsigned largest) {
    if (largest >= 0x7f800000u) return {bits_to_float(0x7fc00000u), 0.0f};
    float x = bits_to_float(largest);
    // The smallest normal number times 128.
    if (x < bits_to_float(0x04000000u)) return {0.0f, 0.0f};
    return {__fdiv_rn(x, 127.0f), __fdiv_rn(127.0f, x)};
}

__device__ inline unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

__device__ inline unsigned magnitude(float4 x) {
    return max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
}

// An INT8 code: the nearest whole number, the even one of two. Where inverse is 0 because of a NaN, the code is 0.
__device__ inline int code_of(float x, float inverse) {
    return inverse == 0.0f ? 0 : max(-127, min(127, __float2int_rn(x * inverse)));
}

__device__ inline unsigned pack(int a, int b, int c, int d) {
    return (unsigned)(a & 255) | (unsigned)(b & 255) << 8 | (unsigned)(c & 255) << 16 | (unsigned)d << 24;
}

// Four columns of a unit (quad: which of the eight fours), by a scale. All lanes of a warp come here; those whose unit is past the last
// write nothing.
__device__ inline void store_quad(signed char* codes, Span* spans, unsigned unit, unsigned units, unsigned per, unsigned quad, float4 x, Scale scale) {
    int a = code_of(x.x, scale.inverse), b = code_of(x.y, scale.inverse);
    int c = code_of(x.z, scale.inverse), d = code_of(x.w, scale.inverse);
    int sum = a + b + c + d;
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    sum += shuffle_xor(sum, 4);
    if (unit >= units) return;
    unsigned place = place_of(unit, per);
    *(unsigned*)(codes + code_byte(place, quad * 4)) = pack(a, b, c, d);
    if (quad == 0) {
        Span span = {scale.scale, sum};
        spans[place] = span;
    }
}

// The same by the unit's own scale.
__device__ inline void quantize_quad(signed char* codes, Span* spans, unsigned unit, unsigned units, unsigned per, unsigned quad, float4 x) {
    unsigned largest = magnitude(x);
    largest = max(largest, shuffle_xor(largest, 1));
    largest = max(largest, shuffle_xor(largest, 2));
    largest = max(largest, shuffle_xor(largest, 4));
    store_quad(codes, spans, unit, units, per, quad, x, scale_of(largest));
}

// One column of a unit that a warp has, quantised by the unit's own scale.
__device__ inline void quantize_lane(signed char* codes, Span* spans, unsigned unit, unsigned per, unsigned lane, float x) {
    unsigned largest = magnitude(x);
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) largest = max(largest, shuffle_xor(largest, mask));
    Scale scale = scale_of(largest);
    int code = code_of(x, scale.inverse), sum = code;
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    unsigned place = place_of(unit, per);
    codes[code_byte(place, lane)] = (signed char)code;
    if (lane == 0) {
        Span span = {scale.scale, sum};
        spans[place] = span;
    }
}

// Four columns of a row of floats, zeros past its end.
__device__ inline float4 load_quad(const float* row, unsigned column, unsigned columns) {
    if (column + 4 <= columns && columns % 4 == 0) return *(const float4*)(row + column);
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (column < columns) x.x = row[column];
    if (column + 1 < columns) x.y = row[column + 1];
    if (column + 2 < columns) x.z = row[column + 2];
    if (column + 3 < columns) x.w = row[column + 3];
    return x;
}

__device__ inline void store_floats(float* row, unsigned column, unsigned columns, float4 x) {
    if (column + 4 <= columns && columns % 4 == 0) {
        *(float4*)(row + column) = x;
        return;
    }
    if (column < columns) row[column] = x.x;
    if (column + 1 < columns) row[column + 1] = x.y;
    if (column + 2 < columns) row[column + 2] = x.z;
    if (column + 3 < columns) row[column + 3] = x.w;
}
