// What a lane group of a product reads for one step: the codes of ROWS rows, and their scales and zeros.
#pragma once
#include "units.cuh"

// What is on its way for one step.
struct Pieces {
    Codes codes[ROWS];
#if SCALED && GROUP
    unsigned scales[WORDS];
#if ZERO == 1
    unsigned points[(ROWS + 3) / 4];
#elif ZERO == 2
    unsigned minima[WORDS];
#endif
#endif
};

// COUNT halves that lie beside each other, two to a word.
template <int COUNT>
__device__ inline void load_halves(const unsigned short* from, unsigned* words) {
    if (COUNT == 1) words[0] = *from;
    if (COUNT == 2) words[0] = *(const unsigned*)from;
    if (COUNT == 4) {
        uint2 v = *(const uint2*)from;
        words[0] = v.x, words[1] = v.y;
    }
    if (COUNT == 8) {
        uint4 v = *(const uint4*)from;
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
}

// Where a lane group's rows are: r < NEIGHBOURS at first, the others at second.
struct Rows {
    unsigned first, second;
};

__device__ inline unsigned row_of(const Rows& rows, int r) { return r < NEIGHBOURS ? rows.first + r : rows.second + (r - NEIGHBOURS); }

__device__ inline Rows rows_of_tile(const Product& args, unsigned tile, unsigned group) {
    Rows rows;
    if (EPILOGUE == 2) {
        unsigned half = args.rows / 2, pair = tile * 32 + group * ROWS / 2;
        // With one row to a group, neighbouring groups have gate and up.
        rows.first = ROWS == 1 && group % 2 ? half + pair : pair;
        rows.second = half + pair;
    } else {
        // Rows are padded to whole tiles of scales; what is past them reads the last ones once more.
        rows.first = rows.second = min(tile * TILE_ROWS + group * ROWS, (args.rows + TILE - 1) / TILE * TILE - ROWS);
    }
    return rows;
}

// A value of each of a group's rows from a plane of halves.
__device__ inline void load_plane(const void* plane, const Rows& rows, unsigned slot, unsigned slots, unsigned (&words)[WORDS]) {
    const unsigned short* halves = (const unsigned short*)plane;
    load_halves<NEIGHBOURS>(halves + scale_at(rows.first, slot, slots), words);
    if (NEIGHBOURS == ROWS) return;
    const unsigned short* second = halves + scale_at(rows.second, slot, slots);
    if (ROWS == 2)
        words[0] |= (unsigned)*second << 16;
    else
        load_halves<NEIGHBOURS>(second, words + WORDS / 2);
}

__device__ inline float half_of(const unsigned* words, int r) { return half_to_float((unsigned short)(words[r / 2] >> (r % 2 * 16))); }

#if ZERO == 1
__device__ inline void load_points(const void* plane, const Rows& rows, unsigned slot, unsigned slots, unsigned (&words)[(ROWS + 3) / 4]) {
    const unsigned char* points = (const unsigned char*)plane;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        unsigned point = points[scale_at(row_of(rows, r), slot, slots)];
        words[r / 4] = r % 4 == 0 ? point : words[r / 4] | point << (r % 4 * 8);
    }
}
#endif

__device__ inline void load_pieces(const Product& args, const Rows& rows, const unsigned char* const (&codes)[ROWS], unsigned step, unsigned lane, Pieces& pieces) {
    UNROLL
    for (int r = 0; r < ROWS; r++) pieces.codes[r] = load_codes(codes[r], step, lane);
#if SCALED && GROUP
    unsigned slot = slot_of(step, lane, PER_OF(args));
    // Segments are longer than the row together: what is past its end has no scale.
    if (GROUP > 1) slot = min(slot, args.slots - 1);
    load_plane(args.scales, rows, slot, args.slots, pieces.scales);
#if ZERO == 1
    load_points(args.zeros, rows, slot, args.slots, pieces.points);
#elif ZERO == 2
    load_plane(args.zeros, rows, slot, args.slots, pieces.minima);
#endif
#endif
}

// Scales of whole rows.
struct RowScales {
#if GROUP == 0 && FORMAT != 0
    unsigned scales[WORDS];
#if ZERO == 1
    unsigned points[(ROWS + 3) / 4];
#elif ZERO == 2
    unsigned minima[WORDS];
#endif
#endif
};

__device__ inline void load_row_scales(const Product& args, const Rows& rows, RowScales& all) {
#if GROUP == 0 && FORMAT != 0
    load_plane(args.scales, rows, 0, 1, all.scales);
#if ZERO == 1
    load_points(args.zeros, rows, 0, 1, all.points);
#elif ZERO == 2
    load_plane(args.zeros, rows, 0, 1, all.minima);
#endif
#endif
}
