// The product of a quantised matrix with many rows of activations, on the integer tensor cores. A block has TILE_ROWS (64 or 128) rows of the
// matrix and 64 tokens, a warp 32 of each. Units are taken in their order and scaled one by one, as in gemv.cu: a segment's sum, then the sum of segments.
//
// Activations are in PLAIN order: what is read together lies together.
//
// The tensor core's four columns (lane % 4) of a fragment are columns 8 q.. 8 q + 3 and 8 q + 4.. 8 q + 7 of a unit, for weights and activations
// alike, so that a word of weights is a fragment as it lies.
#include "units.cuh"

#define THREADS (TILE_ROWS * 2)
#define TILE_TOKENS 64
// Units of a stage, and stages: one is computed while the others are on their way.
#define DEPTH (FORMAT == 2 ? 2 : 4)
#define STAGES (TILE_ROWS == 64 ? 3 : 2)
#ifndef MIN_BLOCKS
#define MIN_BLOCKS (ZERO == 0 ? 512 / THREADS : TILE_ROWS == 64 ? 3 : 1)
#endif
#define UNIT_BYTES (FORMAT == 0 ? 8 : FORMAT == 1 ? 16 : 32)
#define SCALED (!INTEGER)
// Codes as 16 times their signed value, which takes no more instructions than to unpack them, so that nobody needs the sums of activations;
// and the magic number of units.cuh for sums that are 16 times as large.
#define CENTRED (SCALED && FORMAT == 1 && ZERO == 0)
#define MAGIC_BITS_16 0x49400000
#define MAGIC_16 786432.0f
// Of a span its scale is enough.
#define SUMLESS (CENTRED || SCALED && FORMAT == 2)

// A lane has four neighbouring rows of a warp's 32, the i-th of them in the fragments' i-th quarter; so do rows of weights lie.
__device__ inline unsigned row_place(unsigned row) { return row / 32 * 32 + row % 4 * 8 + row % 32 / 4; }

struct Stage {
    ALIGNED(16) unsigned char weights[DEPTH][TILE_ROWS][UNIT_BYTES];
    ALIGNED(16) signed char inputs[DEPTH][TILE_TOKENS][UNIT];
#if SUMLESS
    ALIGNED(16) float spans[DEPTH][TILE_TOKENS];
#else
    ALIGNED(16) Span spans[DEPTH][TILE_TOKENS];
#endif
#if SCALED
    ALIGNED(16) unsigned short scales[DEPTH][TILE_ROWS];
#if ZERO == 1
    ALIGNED(16) unsigned char points[DEPTH][TILE_ROWS];
#elif ZERO == 2
    ALIGNED(16) unsigned short minima[DEPTH][TILE_ROWS];
#endif
#endif
};

// A unit: its step, and the bytes of the pieces of 16 before it in that step.
struct Place {
    unsigned step, lane_bytes;
};

__device__ inline void go_on(Place& place, unsigned units, unsigned per) {
    place.step += units;
    UNROLL
    for (unsigned i = 0; i < units; i++)
        if (place.step >= per) place.step -= per, place.lane_bytes += 16;
}

// A stage's units of a token lie in one piece, and so do their spans.
#define TOKEN_PIECES (DEPTH * 2)
#define INPUT_TURNS (TILE_TOKENS * TOKEN_PIECES / THREADS)
#define SPAN_TURNS ((TILE_TOKENS * DEPTH + THREADS - 1) / THREADS)

// What a thread brings to each stage: every second unit of a row of weights; a piece of some tokens' inputs; a span of some tokens. Rows of
// activations are padded to whole tiles.
struct Loader {
    const unsigned char* weights;
    // From where the block's tokens begin.
    unsigned inputs, spans;
    // Of the next weights, and the next scales.
    Place place, scales;
};

__device__ inline Loader loader(const Product& args) {
    Loader it;
    unsigned thread = threadIdx.x, padded = (args.rows + TILE - 1) / TILE * TILE, steps = (args.per + UNITS_PER_STEP - 1) / UNITS_PER_STEP;
    it.weights = row_codes(args.codes, min(blockIdx.x * TILE_ROWS + thread % TILE_ROWS, padded - 1), steps);
    unsigned places = args.per * SEGMENTS;
    it.inputs = thread / TOKEN_PIECES * places * UNIT + thread % TOKEN_PIECES * 16;
    it.spans = thread / DEPTH * places + thread % DEPTH;
    it.place = it.scales = {0, 0};
    go_on(it.place, thread / TILE_ROWS, args.per);
    go_on(it.scales, thread / (TILE_ROWS / TILE), args.per);
    return it;
}

__device__ inline void load_weights(const Loader& it, Stage& stage, unsigned at) {
    unsigned char* to = stage.weights[at][row_place(threadIdx.x % TILE_ROWS)];
    unsigned step = it.place.step;
#if FORMAT == 0
    copy_async<8>(to, it.weights + (step / 2 * (TILE * STEP_BYTES) + step % 2 * 8 + it.place.lane_bytes));
#else
    copy_async<16>(to, it.weights + (step * (TILE * STEP_BYTES) + it.place.lane_bytes));
#if FORMAT == 2
    copy_async<16>(to + 16, it.weights + (step * (TILE * STEP_BYTES) + it.place.lane_bytes + STEP_BYTES / 2));
#endif
#endif
}

__device__ inline void load_inputs(const Product& args, const Loader& it, Stage& stage, unsigned first) {
    unsigned thread = threadIdx.x, piece = thread % TOKEN_PIECES, places = args.per * SEGMENTS;
    size_t block = (size_t)blockIdx.y * TILE_TOKENS * places + first;
    const signed char* inputs = args.x_codes + block * UNIT;
    const Span* spans = args.x_spans + block;
    signed char* to = stage.inputs[piece / 2][thread / TOKEN_PIECES] + piece % 2 * 16;
    UNROLL
    for (int i = 0; i < INPUT_TURNS; i++)
        copy_async<16>(to + i * (THREADS / TOKEN_PIECES) * UNIT, inputs + (size_t)(i * (THREADS / TOKEN_PIECES)) * places * UNIT + it.inputs);
    auto* span = &stage.spans[thread % DEPTH][thread / DEPTH];
    UNROLL
    for (int i = 0; i < SPAN_TURNS; i++)
        if (TILE_TOKENS * DEPTH >= THREADS || thread < TILE_TOKENS * DEPTH)
            copy_async<SUMLESS ? 4 : 8>(span + i * (THREADS / DEPTH), spans + (size_t)(i * (THREADS / DEPTH)) * places + it.spans);
}

__device__ inline void load_tile_of_scales(const Product& args, Stage& stage, unsigned tile, unsigned at, Place place) {
#if SCALED
    unsigned first = min(blockIdx.x * TILE_ROWS + tile * TILE, (args.rows + TILE - 1) / TILE * TILE - TILE);
    unsigned slot = slot_of(place.step, place.lane_bytes / 16, args.per);
    // As in pieces.cuh: what is past a row's end has no scale.
    if (GROUP > 1) slot = min(slot, args.slots - 1);
    size_t from = scale_at(first, slot, args.slots);
    copy_async<16>(&stage.scales[at][tile * TILE], (const unsigned short*)args.scales + from);
#if ZERO == 1
    copy_async<8>(&stage.points[at][tile * TILE], (const unsigned char*)args.zeros + from);
#elif ZERO == 2
    copy_async<16>(&stage.minima[at][tile * TILE], (const unsigned short*)args.zeros + from);
#endif
#endif
}

// The stage that begins with unit first; empty past the last unit. A row is padded with zeros to more than whole stages.
__device__ inline void load_stage(const Product& args, Loader& it, Stage& stage, unsigned first, unsigned units) {
    if (first < units) {
        load_inputs(args, it, stage, first);
        UNROLL
        for (unsigned i = 0; i < DEPTH; i += 2) {
            load_weights(it, stage, i + threadIdx.x / TILE_ROWS);
            go_on(it.place, 2, args.per);
        }
        unsigned at = threadIdx.x / (TILE_ROWS / TILE);
        if (at < DEPTH) {
            load_tile_of_scales(args, stage, threadIdx.x % (TILE_ROWS / TILE), at, it.scales);
            go_on(it.scales, DEPTH, args.per);
        }
    }
    copies_commit();
}

// Where a lane's parts of a stage begin; all else is at a distance that the compiler knows.
struct Parts {
    const unsigned char* weights;
    const signed char* inputs;
#if SUMLESS
    const float* spans;
#else
    const Span* spans;
#endif
#if SCALED
    const unsigned short* scales;
#if ZERO == 1
    const unsigned char* points;
#elif ZERO == 2
    const unsigned short* minima;
#endif
#endif
};

__device__ inline Parts parts_of(const Stage& stage, unsigned row, unsigned token, unsigned lane) {
    unsigned g = lane / 4, q = lane % 4;
    Parts parts;
    parts.weights = stage.weights[0][row + g] + q * UNIT_BYTES / 4;
    parts.inputs = stage.inputs[0][token + g] + q * 8;
    parts.spans = &stage.spans[0][token + q * 2];
#if SCALED
    parts.scales = &stage.scales[0][row + g * 4];
#if ZERO == 1
    parts.points = &stage.points[0][row + g * 4];
#elif ZERO == 2
    parts.minima = &stage.minima[0][row + g * 4];
#endif
#endif
    return parts;
}

// A lane's fragment of 16 rows: i says which of its two. q: which quarter of a unit it has.
__device__ inline void load_fragment(const Parts& parts, int at, int m, unsigned q, unsigned (&a)[4]) {
    UNROLL
    for (int i = 0; i < 2; i++) {
        const unsigned char* unit = parts.weights + (at * TILE_ROWS + m * 16 + 8 * i) * UNIT_BYTES;
#if FORMAT == 0
        // Two lanes share a word.
        unsigned word = *(const unsigned*)(unit - q % 2 * 2) >> (q % 2 * 4);
        a[i] = word & 0x03030303u;
        a[2 + i] = word >> 2 & 0x03030303u;
#elif CENTRED
        unsigned word = *(const unsigned*)unit;
        a[i] = and_xor(word << 4, 0xf0f0f0f0u, 0x80808080u);
        a[2 + i] = and_xor(word, 0xf0f0f0f0u, 0x80808080u);
#elif FORMAT == 1
        unsigned word = *(const unsigned*)unit;
        a[i] = word & 0x0f0f0f0fu;
        a[2 + i] = word >> 4 & 0x0f0f0f0fu;
#else
        uint2 words = *(const uint2*)unit;
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

__device__ inline void end_segment(Sums& sums) {
    UNROLL
    for (int i = 0; i < 32; i++) {
        (&sums.total[0][0][0])[i] += (&sums.segment[0][0][0])[i];
        (&sums.segment[0][0][0])[i] = 0.0f;
    }
}
#endif

#if INTEGER
__device__ inline void add_unit(const Parts& parts, int at, unsigned q, Sums& sums) {
    unsigned a[2][4];
    UNROLL
    for (int m = 0; m < 2; m++) load_fragment(parts, at, m, q, a[m]);
    UNROLL
    for (int n = 0; n < 4; n++) {
        uint2 words = *(const uint2*)(parts.inputs + (at * TILE_TOKENS + n * 8) * UNIT);
        unsigned b[2] = {words.x, words.y};
        int4 spans = *(const int4*)(parts.spans + at * TILE_TOKENS + n * 8);
        sums.codes[n][0] += spans.y;
        sums.codes[n][1] += spans.w;
        UNROLL
        for (int m = 0; m < 2; m++) multiply_tile<FORMAT != 2>(sums.products[m][n], a[m], b, sums.products[m][n]);
    }
}
#else
__device__ inline void add_unit(const Parts& parts, int at, unsigned q, Sums& sums) {
    unsigned a[2][4];
    float scales[2][2];
#if ZERO == 1
    int points[2][2];
#elif ZERO == 2
    float minima[2][2];
#endif
    uint2 halves = *(const uint2*)(parts.scales + at * TILE_ROWS);
#if ZERO == 1
    unsigned bytes = *(const unsigned*)(parts.points + at * TILE_ROWS);
#elif ZERO == 2
    uint2 more = *(const uint2*)(parts.minima + at * TILE_ROWS);
#endif
    UNROLL
    for (int m = 0; m < 2; m++) {
        load_fragment(parts, at, m, q, a[m]);
        UNROLL
        for (int i = 0; i < 2; i++) {
            scales[m][i] = half_to_float((unsigned short)((m == 0 ? halves.x : halves.y) >> (i * 16)));
#if ZERO == 1
            points[m][i] = (int)(bytes >> ((m * 2 + i) * 8) & 255);
#elif ZERO == 2
            minima[m][i] = half_to_float((unsigned short)((m == 0 ? more.x : more.y) >> (i * 16)));
#endif
        }
    }
    UNROLL
    for (int n = 0; n < 4; n++) {
        uint2 words = *(const uint2*)(parts.inputs + (at * TILE_TOKENS + n * 8) * UNIT);
        unsigned b[2] = {words.x, words.y};
        int product[4];
#if SUMLESS
        float2 spans = *(const float2*)(parts.spans + at * TILE_TOKENS + n * 8);
        float scale[2] = {spans.x, spans.y};
        const int bits = CENTRED ? MAGIC_BITS_16 : MAGIC_BITS, start[4] = {bits, bits, bits, bits};
        const float magic = CENTRED ? MAGIC_16 : MAGIC;
#else
        int4 spans = *(const int4*)(parts.spans + at * TILE_TOKENS + n * 8);
        float scale[2] = {__int_as_float(spans.x), __int_as_float(spans.z)};
        int sum[2] = {spans.y, spans.w}, start[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
        const float magic = MAGIC;
#endif
        UNROLL
        for (int m = 0; m < 2; m++) {
#if ZERO == 1
            UNROLL
            for (int i = 0; i < 4; i++) start[i] = MAGIC_BITS - points[m][i / 2] * sum[i % 2];
#endif
            multiply_tile<!SUMLESS>(product, a[m], b, start);
            UNROLL
            for (int i = 0; i < 4; i++) {
                float& segment = sums.segment[m][n][i];
                segment = fmaf(__int_as_float(product[i]) - magic, scales[m][i / 2] * scale[i % 2], segment);
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

// Four rows of a token.
__device__ inline void store_rows(const Product& args, const Sums& sums, int n, int i, unsigned row, unsigned token) {
    float values[4];
    float* out = args.out + (size_t)token * args.out_pitch + row;
    UNROLL
    for (int j = 0; j < 4; j++) {
        values[j] = row + j < args.rows ? product_of(args, sums, j / 2, n, j % 2 * 2 + i, row + j, token) : 0.0f;
        if (args.bias && row + j < args.rows) values[j] += args.bias[row + j];
        if (EPILOGUE == 1 && row + j < args.rows) values[j] = out[j] + values[j];
    }
    if (row + 4 <= args.rows && args.out_pitch % 4 == 0) {
        *(float4*)out = make_float4(values[0], values[1], values[2], values[3]);
        return;
    }
    UNROLL
    for (int j = 0; j < 4; j++)
        if (row + j < args.rows) out[j] = values[j];
}

KERNEL(gemm, Product, THREADS, MIN_BLOCKS) {
    SHARED(Stage, stages, [STAGES]);
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, units = (args.columns + UNIT - 1) / UNIT;
    unsigned row = warp % (TILE_ROWS / 32) * 32, token = warp / (TILE_ROWS / 32) * 32;
    allow_successor();
    wait_for_predecessor();
    Sums sums = {};
    Loader it = loader(args);
    UNROLL
    for (int i = 0; i < STAGES - 1; i++) load_stage(args, it, stages[i], i * DEPTH, units);
    unsigned now = 0, free = STAGES - 1;
#if SCALED
    unsigned step = 0;
#endif
    for (unsigned first = 0; first < units; first += DEPTH) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        // Everybody is done with the stage before this one.
        load_stage(args, it, stages[free], first + (STAGES - 1) * DEPTH, units);
        Parts parts = parts_of(stages[now], row, token, lane);
        UNROLL
        for (int at = 0; at < DEPTH; at++) {
            add_unit(parts, at, lane % 4, sums);
#if SCALED
            if (++step == args.per) {
                step = 0;
                end_segment(sums);
            }
#endif
        }
        free = now;
        now = now + 1 == STAGES ? 0 : now + 1;
    }
#if SCALED
    end_segment(sums);
#endif
    unsigned first_row = blockIdx.x * TILE_ROWS + row + lane / 4 * 4, first_token = blockIdx.y * TILE_TOKENS + token + lane % 4 * 2;
    UNROLL
    for (int n = 0; n < 4; n++) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            unsigned t = first_token + n * 8 + i;
            if (t < args.tokens) store_rows(args, sums, n, i, first_row, t);
        }
    }
}
