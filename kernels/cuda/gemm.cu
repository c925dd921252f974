// The product of a quantised matrix with many rows of activations, on the integer tensor cores. A block has 128 rows of the matrix and 64
// tokens, a warp 32 of each. Units are taken in their order and scaled one by one, as in gemv.cu: a segment's sum, then the sum of segments.
//
// The tensor core's four columns (lane % 4) of a fragment are columns 8 q.. 8 q + 3 and 8 q + 4.. 8 q + 7 of a unit, for weights and activations
// alike, so that a word of weights is a fragment as it lies.
#include "units.cuh"

#define THREADS 256
#define TILE_ROWS 128
#define TILE_TOKENS 64
// Units of a stage: one is computed while the next is on its way.
#define DEPTH (FORMAT == 2 ? 2 : 4)
#define UNIT_BYTES (FORMAT == 0 ? 8 : FORMAT == 1 ? 16 : 32)
#define SCALED (!INTEGER)

struct Stage {
    ALIGNED(16) unsigned char weights[DEPTH][TILE_ROWS][UNIT_BYTES];
    ALIGNED(16) signed char inputs[DEPTH][TILE_TOKENS][UNIT];
    ALIGNED(16) Span spans[DEPTH][TILE_TOKENS];
#if SCALED
    ALIGNED(16) unsigned short scales[DEPTH][TILE_ROWS];
#if ZERO == 1
    ALIGNED(16) unsigned char points[DEPTH][TILE_ROWS];
#elif ZERO == 2
    ALIGNED(16) unsigned short minima[DEPTH][TILE_ROWS];
#endif
#endif
};

// A unit by its step and its segment's lane.
struct Place {
    unsigned step, lane;
};

__device__ inline Place later(Place place, unsigned units, unsigned per) {
    place.step += units;
    while (place.step >= per) place.step -= per, place.lane++;
    return place;
}

__device__ inline void load_weights(const Product& args, Stage& stage, unsigned row, unsigned at, Place place) {
    unsigned i = row % TILE_ROWS, thread_row = min(row, (args.rows + TILE - 1) / TILE * TILE - 1);
    const unsigned char* from = args.codes + thread_row * row_bytes(args.per);
#if FORMAT == 0
    copy_async<8>(stage.weights[at][i], from + (place.step / 2 * SEGMENTS + place.lane) * 16 + place.step % 2 * 8);
#elif FORMAT == 1
    copy_async<16>(stage.weights[at][i], from + (place.step * SEGMENTS + place.lane) * 16);
#else
    copy_async<16>(stage.weights[at][i], from + (place.step * 2 * SEGMENTS + place.lane) * 16);
    copy_async<16>(stage.weights[at][i] + 16, from + ((place.step * 2 + 1) * SEGMENTS + place.lane) * 16);
#endif
}

__device__ inline void load_tile_of_scales(const Product& args, Stage& stage, unsigned tile, unsigned at, Place place) {
#if SCALED
    unsigned first = min(tile * TILE, (args.rows + TILE - 1) / TILE * TILE - TILE);
    unsigned slot = slot_of(place.step, place.lane, args.per), i = tile * TILE % TILE_ROWS;
    size_t from = scale_at(first, slot, args.slots);
    copy_async<16>(&stage.scales[at][i], (const unsigned short*)args.scales + from);
#if ZERO == 1
    copy_async<8>(&stage.points[at][i], (const unsigned char*)args.zeros + from);
#elif ZERO == 2
    copy_async<16>(&stage.minima[at][i], (const unsigned short*)args.zeros + from);
#endif
#endif
}

__device__ inline void load_inputs(const Product& args, Stage& stage, unsigned token, unsigned half, unsigned at, Place place) {
    size_t from = min(token, args.tokens - 1);
    unsigned i = token % TILE_TOKENS;
    const signed char* codes = args.x_codes + from * args.per * (SEGMENTS * UNIT);
    copy_async<16>(stage.inputs[at][i] + half * 16, codes + ((place.step * 2 + half) * SEGMENTS + place.lane) * 16);
    if (half == 0) copy_async<8>(&stage.spans[at][i], args.x_spans + from * args.per * SEGMENTS + place.step * SEGMENTS + place.lane);
}

// Units first.. of a stage, as many as there are.
__device__ inline void load_stage(const Product& args, Stage& stage, Place place, unsigned left) {
    unsigned thread = threadIdx.x, first_row = blockIdx.x * TILE_ROWS, first_token = blockIdx.y * TILE_TOKENS;
    UNROLL
    for (unsigned i = thread; i < DEPTH * TILE_ROWS; i += THREADS)
        if (i / TILE_ROWS < left) load_weights(args, stage, first_row + i % TILE_ROWS, i / TILE_ROWS, later(place, i / TILE_ROWS, args.per));
    UNROLL
    for (unsigned i = thread; i < DEPTH * TILE_TOKENS * 2; i += THREADS) {
        unsigned at = i / (TILE_TOKENS * 2);
        if (at < left) load_inputs(args, stage, first_token + i % TILE_TOKENS, i / TILE_TOKENS % 2, at, later(place, at, args.per));
    }
    unsigned at = thread / (TILE_ROWS / TILE);
    if (at < DEPTH && at < left) load_tile_of_scales(args, stage, blockIdx.x * (TILE_ROWS / TILE) + thread % (TILE_ROWS / TILE), at, later(place, at, args.per));
    copies_commit();
}

// A lane's fragment of 16 rows: i says which of its two.
__device__ inline void load_fragment(const Stage& stage, unsigned at, unsigned row, unsigned q, unsigned (&a)[4]) {
    UNROLL
    for (int i = 0; i < 2; i++) {
        const unsigned char* unit = stage.weights[at][row + 8 * i];
#if FORMAT == 0
        unsigned word = *(const unsigned*)(unit + q / 2 * 4) >> (q % 2 * 4);
        a[i] = word & 0x03030303u;
        a[2 + i] = word >> 2 & 0x03030303u;
#elif FORMAT == 1
        unsigned word = *(const unsigned*)(unit + q * 4);
        a[i] = word & 0x0f0f0f0fu;
        a[2 + i] = word >> 4 & 0x0f0f0f0fu;
#else
        uint2 words = *(const uint2*)(unit + q * 8);
        a[i] = words.x;
        a[2 + i] = words.y;
#endif
    }
}

// Of 2 by 4 fragments of 16 rows by 8 tokens.
#if INTEGER
struct Sums {
    int products[2][4][4];
    // Of the tokens' codes.
    int codes[4][2];
};
#else
struct Sums {
    float segment[2][4][4];
    float total[2][4][4];
};
#endif

#if INTEGER
__device__ inline void add_unit(const Stage& stage, unsigned at, unsigned row, unsigned token, unsigned lane, Sums& sums) {
    unsigned g = lane / 4, q = lane % 4, a[2][4];
    UNROLL
    for (int m = 0; m < 2; m++) load_fragment(stage, at, row + m * 16 + g, q, a[m]);
    UNROLL
    for (int n = 0; n < 4; n++) {
        uint2 words = *(const uint2*)(stage.inputs[at][token + n * 8 + g] + q * 8);
        unsigned b[2] = {words.x, words.y};
        sums.codes[n][0] += stage.spans[at][token + n * 8 + q * 2].sum;
        sums.codes[n][1] += stage.spans[at][token + n * 8 + q * 2 + 1].sum;
        UNROLL
        for (int m = 0; m < 2; m++) multiply_tile<FORMAT != 2>(sums.products[m][n], a[m], b, sums.products[m][n]);
    }
}
#else
__device__ inline void add_unit(const Stage& stage, unsigned at, unsigned row, unsigned token, unsigned lane, Sums& sums) {
    unsigned g = lane / 4, q = lane % 4, a[2][4];
    float scales[2][2];
#if ZERO == 1
    int points[2][2];
#elif ZERO == 2
    float minima[2][2];
#endif
    UNROLL
    for (int m = 0; m < 2; m++) {
        load_fragment(stage, at, row + m * 16 + g, q, a[m]);
        UNROLL
        for (int i = 0; i < 2; i++) {
            scales[m][i] = half_to_float(stage.scales[at][row + m * 16 + g + i * 8]);
#if ZERO == 1
            points[m][i] = stage.points[at][row + m * 16 + g + i * 8];
#elif ZERO == 2
            minima[m][i] = half_to_float(stage.minima[at][row + m * 16 + g + i * 8]);
#endif
        }
    }
    UNROLL
    for (int n = 0; n < 4; n++) {
        uint2 words = *(const uint2*)(stage.inputs[at][token + n * 8 + g] + q * 8);
        unsigned b[2] = {words.x, words.y};
        int4 spans = *(const int4*)&stage.spans[at][token + n * 8 + q * 2];
        float scale[2] = {__int_as_float(spans.x), __int_as_float(spans.z)};
        int sum[2] = {spans.y, spans.w}, start[4], product[4];
        UNROLL
        for (int i = 0; i < 4; i++) start[i] = MAGIC_BITS - (FORMAT == 1 && ZERO == 0 ? 8 * sum[i % 2] : 0);
        UNROLL
        for (int m = 0; m < 2; m++) {
#if ZERO == 1
            UNROLL
            for (int i = 0; i < 4; i++) start[i] = MAGIC_BITS - points[m][i / 2] * sum[i % 2];
#endif
            multiply_tile<FORMAT != 2>(product, a[m], b, start);
            UNROLL
            for (int i = 0; i < 4; i++) {
                float& segment = sums.segment[m][n][i];
                segment = fmaf(__int_as_float(product[i]) - MAGIC, scales[m][i / 2] * scale[i % 2], segment);
#if ZERO == 2
                segment = fmaf((float)sum[i % 2], minima[m][i / 2] * scale[i % 2], segment);
#endif
            }
        }
    }
}
#endif

// The product in a fragment's place i.
__device__ inline float product_of(const Product& args, const Sums& sums, int m, int n, int i, unsigned row, unsigned token) {
#if INTEGER
    int zero = FORMAT == 0 ? 1 : FORMAT == 1 ? 8 : 0;
    float scale;
    if (FORMAT == 0) {
        scale = ((const float*)args.scales)[row];
    } else {
        scale = half_to_float(((const unsigned short*)args.scales)[scale_at(row, 0, 1)]);
        if (ZERO == 1) zero = ((const unsigned char*)args.zeros)[scale_at(row, 0, 1)];
    }
    float span = args.x_spans[(size_t)token * args.per * SEGMENTS].scale;
    return (float)(sums.products[m][n][i] - zero * sums.codes[n][i % 2]) * (scale * span);
#else
    return sums.total[m][n][i];
#endif
}

KERNEL(gemm, Product, THREADS, 2) {
    SHARED(Stage, stages, [2]);
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, units = (args.columns + UNIT - 1) / UNIT;
    unsigned row = warp % 4 * 32, token = warp / 4 * 32;
    allow_successor();
    wait_for_predecessor();
    Sums sums = {};
    Place next = {0, 0};
    load_stage(args, stages[0], next, units);
    unsigned step = 0;
    for (unsigned first = 0; first < units; first += DEPTH) {
        unsigned which = first / DEPTH % 2;
        if (first + DEPTH < units) {
            next = later(next, DEPTH, args.per);
            load_stage(args, stages[1 - which], next, units - first - DEPTH);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        UNROLL
        for (unsigned at = 0; at < DEPTH; at++) {
            if (first + at < units) {
                add_unit(stages[which], at, row, token, lane, sums);
#if SCALED
                if (++step == args.per || first + at + 1 == units) {
                    step = 0;
                    UNROLL
                    for (int i = 0; i < 32; i++) {
                        (&sums.total[0][0][0])[i] += (&sums.segment[0][0][0])[i];
                        (&sums.segment[0][0][0])[i] = 0.0f;
                    }
                }
#endif
            }
        }
        __syncthreads();
    }
    unsigned g = lane / 4, q = lane % 4;
    UNROLL
    for (int m = 0; m < 2; m++) {
        UNROLL
        for (int n = 0; n < 4; n++) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                unsigned r = blockIdx.x * TILE_ROWS + row + m * 16 + g + i / 2 * 8, t = blockIdx.y * TILE_TOKENS + token + n * 8 + q * 2 + i % 2;
                if (r < args.rows && t < args.tokens) {
                    float value = product_of(args, sums, m, n, i, r, t);
                    if (args.bias) value += args.bias[r];
                    float* out = args.out + (size_t)t * args.out_pitch + r;
                    *out = EPILOGUE == 1 ? *out + value : value;
                }
            }
        }
    }
}
