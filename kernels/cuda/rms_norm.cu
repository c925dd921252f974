// x += y where there is a y; then out = x / sqrt(mean(x²) + eps) · weight, quantised where a product follows. A block has a row, and its
// threads hold the row's first 4096 columns.
#include "norm.cuh"
#include "reduce.cuh"

// Rows of up to 65536 columns.
#define MOST_UNITS 2048
#define THREADS 256
// Units that a turn has, and turns whose columns stay in registers.
#define TURN (THREADS / 8)
#define HELD 4

struct Row {
    float* x;
    const float* y;
    float* out;
    signed char* codes;
    Span* spans;
    unsigned columns, units, per;
};

// Four columns, y added to them.
__device__ inline float4 load_sum(const Row& row, unsigned column) {
    float4 v = load_quad(row.x, column, row.columns);
    if (row.y) {
        float4 y = load_quad(row.y, column, row.columns);
        v = make_float4(v.x + y.x, v.y + y.y, v.z + y.z, v.w + y.w);
    }
    return v;
}

__device__ inline void store(const Row& row, unsigned unit, unsigned quad, float4 v) {
    if (row.out) store_floats(row.out, unit * UNIT + quad * 4, row.columns, v);
    if (QUANTIZE == 2) quantize_quad(row.codes, row.spans, unit, row.units, row.per, quad, v);
}

KERNEL(rms_norm, RmsNorm, THREADS, 2) {
    SHARED(float, squares, [MOST_UNITS]);
    unsigned thread = threadIdx.x, quad = thread % 8, first = thread / 8;
    Row row;
    row.columns = args.columns;
    row.per = args.per;
    row.units = (args.columns + UNIT - 1) / UNIT;
    size_t at = (size_t)blockIdx.y * args.columns, places = (size_t)blockIdx.y * args.per * SEGMENTS;
    row.x = args.x + at;
    row.y = args.y ? args.y + at : nullptr;
    row.out = args.out ? args.out + at : nullptr;
    row.codes = args.codes + places * UNIT;
    row.spans = args.spans + places;
    unsigned padded = (row.units + TURN - 1) / TURN * TURN;
    float4 weights[HELD], held[HELD];
    UNROLL
    for (int i = 0; i < HELD; i++) weights[i] = load_quad(args.weight, (first + i * TURN) * UNIT + quad * 4, args.columns);
    allow_successor();
    wait_for_predecessor();
    UNROLL
    for (int i = 0; i < HELD; i++) held[i] = load_sum(row, (first + i * TURN) * UNIT + quad * 4);
    UNROLL
    for (int i = 0; i < HELD; i++) {
        unsigned unit = first + i * TURN;
        if (row.y) store_floats(row.x, unit * UNIT + quad * 4, args.columns, held[i]);
        float sum = unit_squares(held[i]);
        if (quad == 0 && unit < row.units) squares[unit] = sum;
    }
    UNROLL_BY(1)
    for (unsigned unit = first + HELD * TURN; unit < padded; unit += TURN) {
        float4 v = load_sum(row, unit * UNIT + quad * 4);
        if (row.y) store_floats(row.x, unit * UNIT + quad * 4, args.columns, v);
        float sum = unit_squares(v);
        if (quad == 0 && unit < row.units) squares[unit] = sum;
    }
    __syncthreads();
    float scale = norm_scale(row_squares(squares, row.units, thread % 32), args.columns, args.eps);
    unsigned largest = 0;
    UNROLL
    for (int i = 0; i < HELD; i++) {
        held[i] = normalize(held[i], scale, weights[i]);
        if (QUANTIZE == 1) largest = max(largest, magnitude(held[i]));
        store(row, first + i * TURN, quad, held[i]);
    }
    UNROLL_BY(1)
    for (unsigned unit = first + HELD * TURN; unit < padded; unit += TURN) {
        unsigned column = unit * UNIT + quad * 4;
        float4 v = normalize(load_quad(row.x, column, args.columns), scale, load_quad(args.weight, column, args.columns));
        if (QUANTIZE == 1) largest = max(largest, magnitude(v));
        store(row, unit, quad, v);
    }
    if (QUANTIZE != 1) return;
    Scale token = scale_of(block_max(largest));
    UNROLL
    for (int i = 0; i < HELD; i++) store_quad(row.codes, row.spans, first + i * TURN, row.units, row.per, quad, held[i], token);
    UNROLL_BY(1)
    for (unsigned unit = first + HELD * TURN; unit < padded; unit += TURN) {
        unsigned column = unit * UNIT + quad * 4;
        float4 v = normalize(load_quad(row.x, column, args.columns), scale, load_quad(args.weight, column, args.columns));
        store_quad(row.codes, row.spans, unit, row.units, row.per, quad, v, token);
    }
}
