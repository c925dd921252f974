// out = table[token], as floats.
#include "units.cuh"

__device__ inline float weight_at(const Embed& args, unsigned token, unsigned column) {
    if (FORMAT == 3) return ((const float*)args.codes)[(size_t)token * args.per + column];
    if (FORMAT == 4) return half_to_float(((const unsigned short*)args.codes)[(size_t)token * args.per + column]);
    if (FORMAT == 5) return bits_to_float((unsigned)((const unsigned short*)args.codes)[(size_t)token * args.per + column] << 16);
    unsigned place = place_of(column / UNIT, args.per), within = column % UNIT;
    unsigned step = place / SEGMENTS, lane = place % SEGMENTS;
    if (FORMAT == 0) {
        unsigned byte = row_codes(args.codes, token, (args.per + 1) / 2)[step / 2 * (TILE * STEP_BYTES) + lane * 16 + step % 2 * 8 + within / 16 * 4 + within % 4];
        return (float)((int)(byte >> (within % 16 / 4 * 2) & 3) - 1) * ((const float*)args.scales)[token];
    }
    size_t at = scale_at(token, slot_of(step, lane, args.per), args.slots);
    float scale = half_to_float(((const unsigned short*)args.scales)[at]);
    const unsigned char* piece = row_codes(args.codes, token, args.per) + step * (TILE * STEP_BYTES) + lane * 16;
    if (FORMAT == 2) return scale * (float)(signed char)piece[within / 16 * (STEP_BYTES / 2) + within % 16];
    unsigned byte = piece[within / 8 * 4 + within % 4];
    float code = (float)(byte >> (within % 8 / 4 * 4) & 15);
    if (ZERO == 0) return scale * (code - 8.0f);
    if (ZERO == 1) return scale * (code - (float)((const unsigned char*)args.zeros)[at]);
    return scale * code + half_to_float(((const unsigned short*)args.zeros)[at]);
}

KERNEL(embed, Embed, 256, 4) {
    unsigned column = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    allow_successor();
    wait_for_predecessor();
    if (column >= args.columns) return;
    unsigned token = args.step[row].token;
    args.out[(size_t)row * args.columns + column] = token < args.rows ? weight_at(args, token, column) : bits_to_float(0x7fc00000u);
}
