// The product of a quantised matrix with up to TOKENS rows of activations. 16 lanes have a row of the matrix between them, a segment
// each, and ROWS such rows share each load of activations. Pieces of the next DEPTH steps are on their way meanwhile.
//
// NORM: the activations are the RMSNorm of x, made by every block for itself. EPILOGUE: 0 stores, 1 adds to out, 2: rows are gate | up and
// gate(g) · u is stored, quantised. INTEGER: one scale for the row and one for the token, and so one sum of integers.
#include "norm.cuh"
#include "gate.cuh"

#define ROW_GROUPS (THREADS / SEGMENTS)
#define TILE_ROWS (ROW_GROUPS * ROWS)
#define OUTPUTS (ROWS * TOKENS)
// Pieces of 16 bytes that a lane has on its way, as many as registers allow, and the steps they belong to.
#define STEP_PIECES (ROWS * (FORMAT == 2 ? 2 : 1))
#ifndef MOST_DEPTH
#define MOST_DEPTH 8
#endif
#ifndef PIECES
#define PIECES (TOKENS > 2 ? 4 : TOKENS > 1 || ZERO == 1 || ROWS >= 4 || EPILOGUE == 2 ? 12 : NORM ? 14 : 16)
#endif
#define DEPTH (PIECES < STEP_PIECES ? 1 : PIECES / STEP_PIECES > MOST_DEPTH ? MOST_DEPTH : PIECES / STEP_PIECES)
// 128 registers for a thread, or all of them where a lane group has many sums.
#ifndef MIN_BLOCKS
#define MIN_BLOCKS ((OUTPUTS > 8 || STEP_PIECES > 4 ? 256 : 512) / THREADS)
#endif
// Rows of a lane group that lie beside each other.
#define NEIGHBOURS (EPILOGUE == 2 && ROWS > 1 ? ROWS / 2 : ROWS)
#define SCALED (!INTEGER)
#define WORDS ((ROWS + 1) / 2)
// Units of a segment, if they are known to the compiler.
#define PER_OF(args) (PER ? PER : (args).per)
#define NORM_UNITS (PER ? PER * SEGMENTS : 256)

#include "pieces.cuh"

static_assert(EPILOGUE != 2 || TILE_ROWS == 64, "the gated epilogue makes a unit of 32 outputs of 64 rows");
static_assert(!NORM || TOKENS == 1, "a block normalises one row");

#if INTEGER
typedef int Sum;
#else
typedef float Sum;
#endif

// One step: the units of all rows with those of all tokens.
__device__ inline void add_step(const Pieces& pieces, const RowScales& whole, const signed char* const (&codes)[TOKENS], const Span* const (&spans)[TOKENS],
                                unsigned step, unsigned per, unsigned lane, Sum (&sums)[TOKENS][ROWS]) {
#if GROUP == 0
    const RowScales& groups = whole;
#else
    const Pieces& groups = pieces;
#endif
    UNROLL
    for (int unit = 0; unit < UNITS_PER_STEP; unit++) {
        if (UNITS_PER_STEP * step + unit >= per) break;
        UNROLL
        for (int t = 0; t < TOKENS; t++) {
            Inputs x = load_inputs(codes[t], spans[t], UNITS_PER_STEP * step + unit, lane);
            int symmetric = FORMAT == 0 ? -x.span.sum : FORMAT == 1 && ZERO == 0 ? -8 * x.span.sum : 0;
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                int start = symmetric;
#if ZERO == 1
                start = -(int)(groups.points[r / 4] >> (r % 4 * 8) & 255) * x.span.sum;
#endif
                Unpacked w = unpack(pieces.codes[r], unit);
#if INTEGER
                sums[t][r] = dot(w, x, sums[t][r] + start);
#else
                float product = __int_as_float(dot(w, x, start + MAGIC_BITS)) - MAGIC;
                sums[t][r] = fmaf(product, half_of(groups.scales, r) * x.span.scale, sums[t][r]);
#if ZERO == 2
                sums[t][r] = fmaf((float)x.span.sum, half_of(groups.minima, r) * x.span.scale, sums[t][r]);
#endif
#endif
            }
        }
    }
}

// s0 + s1 + … + s15.
__device__ inline Sum total_of(const Sum* segments) {
    Sum total = segments[0];
    UNROLL
    for (int i = 1; i < SEGMENTS; i++) total += segments[i];
    return total;
}

// The scale of a product of integers.
__device__ inline float row_scale(const Product& args, unsigned row) {
    if (FORMAT == 0) return ((const float*)args.scales)[row];
    return half_to_float(((const unsigned short*)args.scales)[scale_at(row, 0, 1)]);
}

// The normalised and quantised row, in the order in which it is read.
struct Normal {
    ALIGNED(16) signed char codes[NORM_UNITS * UNIT];
    Span spans[NORM_UNITS];
    float squares[NORM_UNITS];
};

#define QUADS ((NORM_UNITS + THREADS / 8 - 1) / (THREADS / 8))

__device__ inline void normalize_row(const Product& args, Normal& normal, const float4 (&weights)[QUADS], unsigned per) {
    unsigned thread = threadIdx.x, quad = thread % 8, all = per * SEGMENTS;
    float4 x[QUADS];
    UNROLL
    for (int i = 0; i < QUADS; i++) x[i] = load_quad(args.x, (i * (THREADS / 8) + thread / 8) * UNIT + quad * 4, args.columns);
    UNROLL
    for (int i = 0; i < QUADS; i++) {
        unsigned unit = i * (THREADS / 8) + thread / 8;
        float sum = unit_squares(x[i]);
        if (quad == 0 && unit < all) normal.squares[unit] = sum;
    }
    __syncthreads();
    unsigned units = (args.columns + UNIT - 1) / UNIT;
    float scale = norm_scale(row_squares(normal.squares, units, thread % 32), args.columns, args.eps);
    UNROLL
    for (int i = 0; i < QUADS; i++)
        quantize_quad(normal.codes, normal.spans, i * (THREADS / 8) + thread / 8, all, per, quad, normalize(x[i], scale, weights[i]));
    __syncthreads();
}

// gate(g) · u of a tile's 32 outputs, quantised; values: 32 of the gate, then 32 of up.
__device__ inline void store_gated(const Product& args, const float* values, unsigned token, unsigned unit, unsigned lane) {
    float v = gated_value(values[lane], values[32 + lane], args.gate);
    if (args.out) args.out[(size_t)token * args.out_pitch + unit * UNIT + lane] = v;
    signed char* codes = args.out_codes + (size_t)token * args.out_per * (SEGMENTS * UNIT);
    quantize_lane(codes, args.out_spans + (size_t)token * args.out_per * SEGMENTS, unit, args.out_per, lane, v);
}

KERNEL(gemv, Product, THREADS, MIN_BLOCKS) {
    SHARED(float, segments, [THREADS / 32][2 * OUTPUTS * 20]);
    SHARED(float, values, [EPILOGUE == 2 ? TOKENS * 64 : 1]);
#if NORM
    SHARED(Normal, normal, [1]);
#endif
    unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % SEGMENTS, group = thread / SEGMENTS;
    unsigned per = PER_OF(args), steps = (per + UNITS_PER_STEP - 1) / UNITS_PER_STEP;
    unsigned tiles = (args.rows + TILE_ROWS - 1) / TILE_ROWS, tile = blockIdx.x;
    RowScales whole;
    Rows rows = rows_of_tile(args, min(tile, tiles - 1), group);
    Pieces ring[DEPTH];
    const unsigned char* codes[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) codes[r] = row_codes(args.codes, row_of(rows, r), steps);
    UNROLL
    for (int i = 0; i < DEPTH; i++)
        if (i < steps) load_pieces(args, rows, codes, i, lane, ring[i]);
    load_row_scales(args, rows, whole);
#if NORM
    float4 weights[QUADS];
    UNROLL
    for (int i = 0; i < QUADS; i++) weights[i] = load_quad(args.norm, (i * (THREADS / 8) + thread / 8) * UNIT + thread % 8 * 4, args.columns);
#endif
    allow_successor();
    wait_for_predecessor();
    const signed char* x_codes[TOKENS];
    const Span* x_spans[TOKENS];
#if NORM
    normalize_row(args, normal[0], weights, per);
    x_codes[0] = normal[0].codes, x_spans[0] = normal[0].spans;
#else
    UNROLL
    for (int t = 0; t < TOKENS; t++) {
        size_t token = TOKENS == 1 ? 0 : min((unsigned)t, args.tokens - 1);
        x_codes[t] = args.x_codes + token * per * (SEGMENTS * UNIT);
        x_spans[t] = args.x_spans + token * per * SEGMENTS;
    }
#endif
    while (tile < tiles) {
        Sum sums[TOKENS][ROWS] = {};
#if PER > 0 && PER <= 16
        UNROLL
#endif
        for (unsigned base = 0; base < steps; base += DEPTH) {
            UNROLL
            for (int i = 0; i < DEPTH; i++) {
                unsigned step = base + i;
                if (step < steps) add_step(ring[i], whole, x_codes, x_spans, step, per, lane, sums);
                if (step + DEPTH < steps) load_pieces(args, rows, codes, step + DEPTH, lane, ring[i]);
            }
        }
        unsigned next = tile + gridDim.x;
        if (next < tiles) {
            rows = rows_of_tile(args, next, group);
            UNROLL
            for (int r = 0; r < ROWS; r++) codes[r] = row_codes(args.codes, row_of(rows, r), steps);
            UNROLL
            for (int i = 0; i < DEPTH; i++)
                if (i < steps) load_pieces(args, rows, codes, i, lane, ring[i]);
        }
        Sum* mine = (Sum*)segments[warp];
        UNROLL
        for (int t = 0; t < TOKENS; t++) {
            UNROLL
            for (int r = 0; r < ROWS; r++) mine[(group % 2 * OUTPUTS + t * ROWS + r) * 20 + lane] = sums[t][r];
        }
        __syncwarp();
        for (unsigned v = thread % 32; v < 2 * OUTPUTS; v += 32) {
            unsigned owner = warp * 2 + v / OUTPUTS, t = v % OUTPUTS / ROWS, r = v % ROWS;
            Rows of = rows_of_tile(args, tile, owner);
            unsigned row = row_of(of, r);
            bool exists = EPILOGUE == 2 || tile * TILE_ROWS + owner * ROWS + r < args.rows;
            if (!exists || t >= args.tokens) continue;
            Sum total = total_of(mine + v * 20);
#if INTEGER
            const Span* span = NORM ? x_spans[0] : args.x_spans + (size_t)t * per * SEGMENTS;
            float value = (float)total * (row_scale(args, row) * span->scale);
#else
            float value = total;
#endif
            if (args.bias) value += args.bias[row];
            float* out = args.out + (size_t)t * args.out_pitch + row;
            if (EPILOGUE == 0) *out = value;
            if (EPILOGUE == 1) *out += value;
            if (EPILOGUE == 2) values[t * 64 + row / (args.rows / 2) * 32 + row % (args.rows / 2) % 32] = value;
        }
        if (EPILOGUE == 2) {
            __syncthreads();
            for (unsigned t = warp; t < args.tokens; t += THREADS / 32) store_gated(args, values + t * 64, t, tile, thread % 32);
            __syncthreads();
        } else {
            __syncwarp();
        }
        load_row_scales(args, rows, whole);
        tile = next;
    }
}
