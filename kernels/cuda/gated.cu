// out = gate(g) · u where a row of gate_up is g | u, quantised where a product follows. A block has 32 units of a row.
#include "activation.cuh"
#include "gate.cuh"

#define THREADS 256

KERNEL(gated, Gated, THREADS, 4) {
    unsigned thread = threadIdx.x, quad = thread % 8, row = blockIdx.y;
    unsigned units = (args.columns + UNIT - 1) / UNIT;
    unsigned unit = blockIdx.x * (THREADS / 8) + thread / 8, column = unit * UNIT + quad * 4;
    allow_successor();
    wait_for_predecessor();
    const float* g = args.gate_up + (size_t)row * 2 * args.columns;
    float4 a = load_quad(g, column, args.columns), b = load_quad(g + args.columns, column, args.columns);
    float4 v = make_float4(gated_value(a.x, b.x, args.gate), gated_value(a.y, b.y, args.gate), gated_value(a.z, b.z, args.gate), gated_value(a.w, b.w, args.gate));
    if (args.out) store_floats(args.out + (size_t)row * args.columns, column, args.columns, v);
    if (QUANTIZE == 2) {
        signed char* codes = args.codes + (size_t)row * args.per * (SEGMENTS * UNIT);
        quantize_quad(codes, args.spans + (size_t)row * args.per * SEGMENTS, unit, units, args.per, quad, v);
    }
}
