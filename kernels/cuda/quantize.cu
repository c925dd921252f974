// Activations to INT8: QUANTIZE 1 with one scale for a row, which a block has; 2 with a scale for each unit, 32 of them to a block.
#include "activation.cuh"
#include "reduce.cuh"

#define THREADS 256

KERNEL(quantize, Quantize, THREADS, 4) {
    unsigned thread = threadIdx.x, quad = thread % 8, row = blockIdx.y;
    unsigned units = (args.columns + UNIT - 1) / UNIT;
    allow_successor();
    wait_for_predecessor();
    const float* x = args.x + (size_t)row * args.columns;
    signed char* codes = args.codes + (size_t)row * args.per * (SEGMENTS * UNIT);
    Span* spans = args.spans + (size_t)row * args.per * SEGMENTS;
    if (QUANTIZE == 2) {
        unsigned unit = blockIdx.x * (THREADS / 8) + thread / 8;
        quantize_quad(codes, spans, unit, units, args.per, quad, load_quad(x, unit * UNIT + quad * 4, args.columns));
        return;
    }
    unsigned padded = (units + 31) / 32 * 32, largest = 0;
    for (unsigned unit = thread / 8; unit < padded; unit += THREADS / 8)
        largest = max(largest, magnitude(load_quad(x, unit * UNIT + quad * 4, args.columns)));
    Scale scale = scale_of(block_max(largest));
    for (unsigned unit = thread / 8; unit < padded; unit += THREADS / 8)
        store_quad(codes, spans, unit, units, args.per, quad, load_quad(x, unit * UNIT + quad * 4, args.columns), scale);
}
