// The kernels' arguments: the twin of src/args.rs, which says what each field is.
#pragma once

struct Span {
    float scale;
    int sum;
};

struct StepRow {
    unsigned token, sequence, position, source;
};

struct Product {
    const unsigned char* codes;
    const void* scales;
    const void* zeros;
    const signed char* x_codes;
    const Span* x_spans;
    const float* x;
    const float* norm;
    const float* bias;
    float* out;
    signed char* out_codes;
    Span* out_spans;
    unsigned rows, columns, per, slots, tokens, out_pitch, out_per, gate;
    float eps;
    unsigned unused;
};

struct Dense {
    const void* weights;
    const float* x;
    const float* bias;
    float* out;
    unsigned rows, columns, pitch, tokens, out_pitch, unused;
};

struct Embed {
    const unsigned char* codes;
    const void* scales;
    const void* zeros;
    const StepRow* step;
    float* out;
    unsigned columns, per, slots, rows;
};

struct Quantize {
    const float* x;
    signed char* codes;
    Span* spans;
    unsigned columns, per;
};

struct RmsNorm {
    float* x;
    const float* y;
    const float* weight;
    float* out;
    signed char* codes;
    Span* spans;
    unsigned columns, per;
    float eps;
    unsigned unused;
};

struct Add {
    float* x;
    const float* y;
    unsigned columns, y_pitch;
};

struct HeadNorm {
    float* qkv;
    const float* query;
    const float* key;
    unsigned dim, query_heads, kv_heads;
    float eps;
};

struct RopeStoreKv {
    const StepRow* step;
    float* qkv;
    const float* table;
    unsigned char* keys;
    unsigned char* values;
    float* key_scales;
    float* value_scales;
    unsigned dim, query_heads, kv_heads, context;
};

struct Attend {
    const StepRow* step;
    const float* qkv;
    const float* table;
    unsigned char* keys;
    unsigned char* values;
    float* key_scales;
    float* value_scales;
    float* partials;
    unsigned* counters;
    float* out;
    signed char* codes;
    Span* spans;
    unsigned dim, query_heads, kv_heads, context, chunks, per;
    float scale;
    unsigned rows;
};

struct Gated {
    const float* gate_up;
    float* out;
    signed char* codes;
    Span* spans;
    unsigned columns, per, gate, unused;
};

struct SelectRows {
    const StepRow* step;
    const float* x;
    float* out;
    unsigned columns, unused;
};

struct Candidate {
    float value;
    unsigned index;
};

struct Argmax {
    const float* x;
    Candidate* partials;
    unsigned* counters;
    unsigned* out;
    StepRow* next;
    unsigned columns, unused;
};

struct Copy16 {
    const uint4* from;
    uint4* to;
    unsigned long long vectors;
};

static_assert(sizeof(Span) == 8 && sizeof(StepRow) == 16 && sizeof(Candidate) == 8, "as in args.rs");
static_assert(sizeof(Product) == 128 && sizeof(Dense) == 56 && sizeof(Embed) == 56 && sizeof(Quantize) == 32, "as in args.rs");
static_assert(sizeof(RmsNorm) == 64 && sizeof(Add) == 24 && sizeof(HeadNorm) == 40 && sizeof(RopeStoreKv) == 72, "as in args.rs");
static_assert(sizeof(Attend) == 128 && sizeof(Gated) == 48 && sizeof(SelectRows) == 32 && sizeof(Argmax) == 48, "as in args.rs");
static_assert(sizeof(Copy16) == 24, "as in args.rs");
