// The weights of a product a step at a time: 16 lanes read 16 neighbouring pieces of a row, and the next rows' are behind them. A step has
// one unit of each lane's segment, or two where codes have 2 bits. What a format has to say: `Codes`, `load_codes`, `Unpacked`, `unpack` and `dot`.
#pragma once
#include "weights.cuh"

// Added to a sum of up to 2^22, these bits make the float 1.5 · 2^23 + sum: a conversion at the price of a subtraction.
#define MAGIC_BITS 0x4b400000
#define MAGIC 12582912.0f

// A unit's activations.
struct Inputs {
    int codes[8];
    Span span;
};

__device__ inline Inputs load_inputs(const signed char* codes, const Span* spans, unsigned step, unsigned lane) {
    Inputs x;
    int4 a = *(const int4*)(codes + ((step * 2) * SEGMENTS + lane) * 16);
    int4 b = *(const int4*)(codes + ((step * 2 + 1) * SEGMENTS + lane) * 16);
    x.codes[0] = a.x, x.codes[1] = a.y, x.codes[2] = a.z, x.codes[3] = a.w;
    x.codes[4] = b.x, x.codes[5] = b.y, x.codes[6] = b.z, x.codes[7] = b.w;
    int2 span = *(const int2*)(spans + step * SEGMENTS + lane);
    x.span.scale = __int_as_float(span.x), x.span.sum = span.y;
    return x;
}

#if FORMAT == 1

#define UNITS_PER_STEP 1
#define STEP_BYTES 256
typedef uint4 Codes;

struct Unpacked {
    unsigned low[4], high[4];
};

__device__ inline Codes load_codes(const unsigned char* row, unsigned step, unsigned lane) { return load_once(row + step * (TILE * STEP_BYTES) + lane * 16); }

// High nibbles stay where they are: their sum is 16 times as large, and shifted once.
__device__ inline Unpacked unpack(Codes codes, int) {
    unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
    Unpacked w;
    UNROLL
    for (int j = 0; j < 4; j++) {
        w.low[j] = words[j] & 0x0f0f0f0fu;
        w.high[j] = words[j] & 0xf0f0f0f0u;
    }
    return w;
}

__device__ inline int dot(const Unpacked& w, const Inputs& x, int start) {
    int low = start, high = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        low = dot_unsigned(w.low[j], x.codes[2 * j], low);
        high = dot_unsigned(w.high[j], x.codes[2 * j + 1], high);
    }
    return low + (high >> 4);
}

#elif FORMAT == 2

#define UNITS_PER_STEP 1
#define STEP_BYTES 512
struct Codes {
    uint4 first, second;
};
typedef Codes Unpacked;

__device__ inline Codes load_codes(const unsigned char* row, unsigned step, unsigned lane) {
    Codes codes;
    codes.first = load_once(row + step * (TILE * STEP_BYTES) + lane * 16);
    codes.second = load_once(row + step * (TILE * STEP_BYTES) + STEP_BYTES / 2 + lane * 16);
    return codes;
}

__device__ inline Unpacked unpack(const Codes& codes, int) { return codes; }

__device__ inline int dot(const Unpacked& w, const Inputs& x, int start) {
    int a = dot_signed((int)w.first.x, x.codes[0], start), b = dot_signed((int)w.second.x, x.codes[4], 0);
    a = dot_signed((int)w.first.y, x.codes[1], a), b = dot_signed((int)w.second.y, x.codes[5], b);
    a = dot_signed((int)w.first.z, x.codes[2], a), b = dot_signed((int)w.second.z, x.codes[6], b);
    a = dot_signed((int)w.first.w, x.codes[3], a), b = dot_signed((int)w.second.w, x.codes[7], b);
    return a + b;
}

#elif FORMAT == 0

#define UNITS_PER_STEP 2
#define STEP_BYTES 256
typedef uint4 Codes;

// Two words of a unit; four columns are two bits of each byte.
struct Unpacked {
    unsigned words[2];
};

__device__ inline Codes load_codes(const unsigned char* row, unsigned step, unsigned lane) { return load_once(row + step * (TILE * STEP_BYTES) + lane * 16); }

__device__ inline Unpacked unpack(const Codes& codes, int unit) {
    Unpacked w;
    w.words[0] = unit == 0 ? codes.x : codes.z;
    w.words[1] = unit == 0 ? codes.y : codes.w;
    return w;
}

// Bits stay where they are: sums are 4, 16 and 64 times as large, and shifted once.
__device__ inline int dot(const Unpacked& w, const Inputs& x, int start) {
    int a = start, b = 0, c = 0, d = 0;
    UNROLL
    for (int j = 0; j < 2; j++) {
        a = dot_unsigned(w.words[j] & 0x03030303u, x.codes[4 * j], a);
        b = dot_unsigned(w.words[j] & 0x0c0c0c0cu, x.codes[4 * j + 1], b);
        c = dot_unsigned(w.words[j] & 0x30303030u, x.codes[4 * j + 2], c);
        d = dot_unsigned(w.words[j] & 0xc0c0c0c0u, x.codes[4 * j + 3], d);
    }
    return a + (b >> 2) + (c >> 4) + (d >> 6);
}

#else

// Rows of floats have no steps.
#define STEP_BYTES 0

#endif

// Where a row's codes begin: the eight rows of a tile have each step beside each other.
__device__ inline const unsigned char* row_codes(const unsigned char* codes, unsigned row, unsigned steps) {
    return codes + ((size_t)(row / TILE) * steps * TILE + row % TILE) * STEP_BYTES;
}
