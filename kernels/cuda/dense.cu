// The product of a matrix of floats with rows of floats. A warp has a row of the matrix and up to 8 tokens; its lanes take
// neighbouring vectors of columns.
#include "activation.cuh"

#define TOKENS 8
#define WARPS 8
#define COLUMNS (FORMAT == 3 ? 4 : 8)

// COLUMNS weights from 16 bytes.
__device__ inline void widen(uint4 v, float (&w)[COLUMNS]) {
    unsigned words[4] = {v.x, v.y, v.z, v.w};
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (FORMAT == 3) {
            w[i] = bits_to_float(words[i]);
        } else if (FORMAT == 4) {
            w[2 * i % COLUMNS] = half_to_float((unsigned short)words[i]);
            w[(2 * i + 1) % COLUMNS] = half_to_float((unsigned short)(words[i] >> 16));
        } else {
            w[2 * i % COLUMNS] = bits_to_float(words[i] << 16);
            w[(2 * i + 1) % COLUMNS] = bits_to_float(words[i] & 0xffff0000u);
        }
    }
}

KERNEL(dense, Dense, 32 * WARPS, 2) {
    unsigned lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32, first = blockIdx.y * TOKENS;
    if (row >= args.rows) return;
    const unsigned char* weights = (const unsigned char*)args.weights + (size_t)row * args.pitch * (16 / COLUMNS);
    allow_successor();
    wait_for_predecessor();
    float sums[TOKENS] = {};
    for (unsigned column = lane * COLUMNS; column < args.columns; column += 32 * COLUMNS) {
        float w[COLUMNS];
        widen(load_once(weights + (size_t)column * (16 / COLUMNS)), w);
        UNROLL
        for (int t = 0; t < TOKENS; t++) {
            if (first + t < args.tokens) {
                const float* x = args.x + (size_t)(first + t) * args.columns;
                UNROLL
                for (int i = 0; i < COLUMNS; i += 4) {
                    float4 v = load_quad(x, column + i, args.columns);
                    sums[t] = fmaf(w[i], v.x, sums[t]);
                    sums[t] = fmaf(w[i + 1], v.y, sums[t]);
                    sums[t] = fmaf(w[i + 2], v.z, sums[t]);
                    sums[t] = fmaf(w[i + 3], v.w, sums[t]);
                }
            }
        }
    }
    UNROLL
    for (int t = 0; t < TOKENS; t++) {
        if (first + t < args.tokens) {
            float value = sums[t];
            UNROLL
            for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
            if (lane == 0) {
                if (args.bias) value += args.bias[row];
                float* out = args.out + (size_t)(first + t) * args.out_pitch + row;
                *out = EPILOGUE == 1 ? *out + value : value;
            }
        }
    }
}
