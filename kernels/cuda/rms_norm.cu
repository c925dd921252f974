// x += y where there is a y; then out = x / sqrt(mean(x²) + eps) · weight, quantised where a product follows. A block has a row.
#include "norm.cuh"
#include "reduce.cuh"

// Rows of up to 65536 columns.
#define MOST_UNITS 2048
#define THREADS 256

KERNEL(rms_norm, RmsNorm, THREADS, 4) {
    SHARED(float, squares, [MOST_UNITS]);
    unsigned thread = threadIdx.x, quad = thread % 8, row = blockIdx.y;
    unsigned units = (args.columns + UNIT - 1) / UNIT;
    unsigned padded = (units + 31) / 32 * 32;
    allow_successor();
    wait_for_predecessor();
    float* x = args.x + (size_t)row * args.columns;
    for (unsigned unit = thread / 8; unit < padded; unit += THREADS / 8) {
        unsigned column = unit * UNIT + quad * 4;
        float4 v = load_quad(x, column, args.columns);
        if (args.y) {
            float4 y = load_quad(args.y + (size_t)row * args.columns, column, args.columns);
            v = make_float4(v.x + y.x, v.y + y.y, v.z + y.z, v.w + y.w);
            store_floats(x, column, args.columns, v);
        }
        float sum = unit_squares(v);
        if (quad == 0 && unit < units) squares[unit] = sum;
    }
    __syncthreads();
    float scale = norm_scale(row_squares(squares, units, thread % 32), args.columns, args.eps);
    signed char* codes = args.codes + (size_t)row * args.per * (SEGMENTS * UNIT);
    Span* spans = args.spans + (size_t)row * args.per * SEGMENTS;
    unsigned largest = 0;
    for (unsigned unit = thread / 8; unit < padded; unit += THREADS / 8) {
        unsigned column = unit * UNIT + quad * 4;
        float4 weight = load_quad(args.weight, column, args.columns);
        float4 v = normalize(load_quad(x, column, args.columns), scale, weight);
        if (args.out) store_floats(args.out + (size_t)row * args.columns, column, args.columns, v);
        if (QUANTIZE == 1) largest = max(largest, magnitude(v));
        if (QUANTIZE == 2) quantize_quad(codes, spans, unit, units, args.per, quad, v);
    }
    if (QUANTIZE == 1) {
        Scale token = scale_of(block_max(largest));
        for (unsigned unit = thread / 8; unit < padded; unit += THREADS / 8) {
            unsigned column = unit * UNIT + quad * 4;
            float4 weight = load_quad(args.weight, column, args.columns);
            float4 v = normalize(load_quad(x, column, args.columns), scale, weight);
            store_quad(codes, spans, unit, units, args.per, quad, v, token);
        }
    }
}
