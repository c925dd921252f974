// Causal attention of up to 8 query heads that share a key/value head. A block has a chunk of 64 positions of a row; the last block to be done
// with a row and head joins the chunks, in their order. A chunk's sums and the join depend on the row's position alone.
//
// ROPE: the row is the step's only one; queries and the key are rotated here, and the key and value stored. Older keys and values are then
// on their way before the kernel that makes the query has ended. QUANTIZE: out for the product that follows; dim % 32 = 0. DIM: the columns
// of a head, if the kernel is made for them; QUERIES: the query heads that share a key/value head, up to 8, likewise.
#include "attention.cuh"
#include "rotate.cuh"

#define THREADS 256
// Query heads of a block: QUERIES, if the kernel is made for so many, or up to 8.
#define HEADS (QUERIES ? QUERIES : 8)
#define HEADS_OF(task) (QUERIES ? QUERIES : (task).heads)
// Threads that share a position's key, each with every fourth piece of 8 columns.
#define QUARTERS (THREADS / CHUNK)
#define DIM_OF(args) (DIM ? DIM : (args).dim)
#define MOST (DIM ? DIM : MOST_DIM)
#define PIECES ((MOST + 7) / 8)
#define OWN_PIECES ((PIECES + QUARTERS - 1) / QUARTERS)
// Positions whose values a thread holds before they are asked for.
#define AHEAD 16

struct Memory {
    ALIGNED(16) float query[HEADS][PIECES * 8];
    ALIGNED(16) float scores[HEADS][CHUNK];
    // [group of positions, head, column]; [head, column] when chunks are joined.
    float sums[4096];
    float highest[HEADS], total[HEADS];
    float key[PIECES * 8], value[PIECES * 8];
    unsigned arrived;
};

// What a block works on.
struct Task {
    unsigned row, first_head, heads, kv_head, position, chunk, chunks;
    // Positions of the chunk, and those that are in the cache when the kernel begins.
    unsigned count, known;
    const unsigned char* keys;
    const unsigned char* values;
    const float* key_scales;
    const float* value_scales;
};

// A thread's share of values: two columns at every position of a group.
struct Share {
    unsigned pair, group, groups, positions;
};

__device__ inline Share share_of(unsigned dim) {
    unsigned pairs = 32;
    while (pairs * 2 < dim) pairs *= 2;
    Share share;
    share.pair = threadIdx.x % pairs;
    share.group = threadIdx.x / pairs;
    share.groups = THREADS / pairs;
    share.positions = CHUNK / share.groups;
    return share;
}

// Keys and values that a thread holds.
struct Ahead {
    Eight keys[OWN_PIECES];
    Pair values[AHEAD];
    float key_scale;
};

__device__ inline void load_ahead(const Task& task, const Share& share, unsigned dim, Ahead& ahead) {
    unsigned at = threadIdx.x / QUARTERS, quarter = threadIdx.x % QUARTERS, pieces = (dim + 7) / 8;
    UNROLL
    for (int i = 0; i < OWN_PIECES; i++)
        if (at < task.known && i * QUARTERS + quarter < pieces) ahead.keys[i] = load_eight(task.keys + at * vector_bytes(dim), i * QUARTERS + quarter);
    ahead.key_scale = CACHE == 2 && at < task.known ? task.key_scales[at] : 1.0f;
    UNROLL
    for (int i = 0; i < AHEAD; i++) {
        unsigned position = share.group * share.positions + i;
        if (i < share.positions && position < task.known && share.pair * 2 < dim) ahead.values[i] = load_pair(task.values + position * vector_bytes(dim), share.pair);
    }
}

// The queries, and with ROPE the row's own key and value.
__device__ inline void load_query(const Attend& args, const Task& task, Memory& memory, unsigned dim) {
    unsigned padded = (dim + 7) / 8 * 8, half = dim / 2;
    const float* row = args.qkv + (size_t)task.row * (args.query_heads + 2 * args.kv_heads) * dim;
    const float* q = row + task.first_head * dim;
    if (!ROPE) {
        for (unsigned i = threadIdx.x; i < HEADS_OF(task) * padded; i += THREADS) {
            unsigned head = i / padded, column = i % padded;
            memory.query[head][column] = column < dim ? q[head * dim + column] : 0.0f;
        }
        return;
    }
    const float* angles = args.table + (size_t)task.position * dim;
    const float* key = row + (args.query_heads + task.kv_head) * dim;
    // The heads of the queries, then the key.
    for (unsigned i = threadIdx.x; i < (HEADS_OF(task) + 1) * half; i += THREADS) {
        unsigned head = i / half, column = i % half;
        float* to = head < HEADS_OF(task) ? memory.query[head] : memory.key;
        float2 v = rotated(head < HEADS_OF(task) ? q + head * dim : key, angles, column, dim);
        to[column] = v.x;
        to[column + half] = v.y;
    }
    for (unsigned i = threadIdx.x; i < dim; i += THREADS) memory.value[i] = key[args.kv_heads * dim + i];
    for (unsigned i = threadIdx.x; i < (HEADS + 1) * (padded - dim); i += THREADS) {
        unsigned head = i / (padded - dim), column = dim + i % (padded - dim);
        (head < HEADS ? memory.query[head] : memory.key)[column] = 0.0f;
    }
}

__device__ inline void score_chunk(const Attend& args, const Task& task, Memory& memory, unsigned dim, const Ahead& ahead, Scale own) {
    unsigned at = threadIdx.x / QUARTERS, quarter = threadIdx.x % QUARTERS, pieces = (dim + 7) / 8;
    float sums[HEADS] = {};
    UNROLL
    for (int i = 0; i < OWN_PIECES; i++) {
        unsigned piece = i * QUARTERS + quarter;
        if (piece < pieces) {
            float k[8] = {};
            if (at < task.known) widen(ahead.keys[i], k);
            if (ROPE && at >= task.known && at < task.count) {
                UNROLL
                for (int c = 0; c < 8; c++) k[c] = as_stored(memory.key[piece * 8 + c], own);
            }
            UNROLL
            for (int h = 0; h < HEADS; h++) {
                if (h < HEADS_OF(task)) {
                    float4 a = *(const float4*)&memory.query[h][piece * 8], b = *(const float4*)&memory.query[h][piece * 8 + 4];
                    sums[h] = fmaf(a.x, k[0], sums[h]);
                    sums[h] = fmaf(a.y, k[1], sums[h]);
                    sums[h] = fmaf(a.z, k[2], sums[h]);
                    sums[h] = fmaf(a.w, k[3], sums[h]);
                    sums[h] = fmaf(b.x, k[4], sums[h]);
                    sums[h] = fmaf(b.y, k[5], sums[h]);
                    sums[h] = fmaf(b.z, k[6], sums[h]);
                    sums[h] = fmaf(b.w, k[7], sums[h]);
                }
            }
        }
    }
    float scale = args.scale * (CACHE != 2 ? 1.0f : at < task.known ? ahead.key_scale : own.scale);
    UNROLL
    for (int h = 0; h < HEADS; h++) {
        sums[h] += shuffle_xor(sums[h], 1);
        sums[h] += shuffle_xor(sums[h], 2);
        if (quarter == 0 && h < HEADS_OF(task)) memory.scores[h][at] = sums[h] * scale;
    }
}

// Scores to weights; a warp has a head.
__device__ inline void weigh(const Task& task, Memory& memory, Scale own) {
    unsigned head = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= HEADS_OF(task)) return;
    bool first = lane < task.count, second = lane + 32 < task.count;
    float a = first ? memory.scores[head][lane] : LOWEST, b = second ? memory.scores[head][lane + 32] : LOWEST;
    float highest = largest_of_warp(fmaxf(a, b));
    a = first ? expf(a - highest) : 0.0f;
    b = second ? expf(b - highest) : 0.0f;
    float total = sum_of_warp(a + b);
    // An INT8 value's scale goes with its weight.
    if (CACHE == 2 && first) a *= lane < task.known ? task.value_scales[lane] : own.scale;
    if (CACHE == 2 && second) b *= lane + 32 < task.known ? task.value_scales[lane + 32] : own.scale;
    memory.scores[head][lane] = a;
    memory.scores[head][lane + 32] = b;
    if (lane == 0) memory.highest[head] = highest, memory.total[head] = total;
}

__device__ inline float2 value_at(const Task& task, const Memory& memory, const Share& share, unsigned position, unsigned dim, const Ahead& ahead, int i, Scale own) {
    if (share.pair * 2 >= dim || position >= task.count) return make_float2(0.0f, 0.0f);
    if (ROPE && position >= task.known) return make_float2(as_stored(memory.value[share.pair * 2], own), as_stored(memory.value[share.pair * 2 + 1], own));
    return widen(i < AHEAD ? ahead.values[i % AHEAD] : load_pair(task.values + position * vector_bytes(dim), share.pair));
}

// Each group's sums of its positions' values.
__device__ inline void sum_values(const Task& task, Memory& memory, const Share& share, unsigned dim, const Ahead& ahead, Scale own) {
    float2 sums[HEADS] = {};
    unsigned first = share.group * share.positions;
    UNROLL
    for (int i = 0; i < 32; i += 4) {
        if (i < share.positions && first + i < task.count) {
            float2 v[4];
            UNROLL
            for (int j = 0; j < 4; j++) v[j] = value_at(task, memory, share, first + i + j, dim, ahead, i + j, own);
            UNROLL
            for (int h = 0; h < HEADS; h++) {
                if (h < HEADS_OF(task)) {
                    float4 w = *(const float4*)&memory.scores[h][first + i];
                    sums[h].x = fmaf(w.x, v[0].x, sums[h].x), sums[h].y = fmaf(w.x, v[0].y, sums[h].y);
                    sums[h].x = fmaf(w.y, v[1].x, sums[h].x), sums[h].y = fmaf(w.y, v[1].y, sums[h].y);
                    sums[h].x = fmaf(w.z, v[2].x, sums[h].x), sums[h].y = fmaf(w.z, v[2].y, sums[h].y);
                    sums[h].x = fmaf(w.w, v[3].x, sums[h].x), sums[h].y = fmaf(w.w, v[3].y, sums[h].y);
                }
            }
        }
    }
    if (share.pair * 2 >= dim) return;
    UNROLL
    for (int h = 0; h < HEADS; h++)
        if (h < HEADS_OF(task)) *(float2*)&memory.sums[(share.group * HEADS_OF(task) + h) * dim + share.pair * 2] = sums[h];
}

// Columns of the result that a thread has.
#define OWN_COLUMNS ((HEADS * MOST + THREADS - 1) / THREADS)

// Chunks whose sums a thread holds before it knows what they count; a divisor of CHUNK.
#define JOINED (MOST > 128 ? 2 : MOST > 64 ? 4 : 8)

__device__ inline void load_joined(const float* const (&partials)[OWN_COLUMNS], unsigned first, unsigned chunks, unsigned pitch, float (&sums)[JOINED][OWN_COLUMNS]) {
    UNROLL
    for (int c = 0; c < JOINED; c++) {
        UNROLL
        for (int i = 0; i < OWN_COLUMNS; i++) sums[c][i] = first + c < chunks ? __ldcg(partials[i] + (size_t)(first + c) * pitch) : 0.0f;
    }
}

// The chunks' sums by their maxima. scores: what each of 64 chunks counts.
__device__ inline void join(const Attend& args, const Task& task, Memory& memory, unsigned dim) {
    unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32, columns = HEADS_OF(task) * dim;
    const float* partials[OWN_COLUMNS];
    float sums[OWN_COLUMNS] = {}, next[JOINED][OWN_COLUMNS];
    UNROLL
    for (int i = 0; i < OWN_COLUMNS; i++) {
        unsigned column = min(i * THREADS + thread, columns - 1);
        partials[i] = partial_of(args, task.row, task.first_head + column / dim, dim, 0) + column % dim;
    }
    load_joined(partials, 0, task.chunks, dim + 2, next);
    float highest = LOWEST, total = 0.0f;
    if (warp < HEADS_OF(task)) {
        for (unsigned c = lane; c < task.chunks; c += 32) highest = fmaxf(highest, __ldcg(partial_of(args, task.row, task.first_head + warp, dim, c) + dim));
        highest = largest_of_warp(highest);
    }
    for (unsigned start = 0; start < task.chunks; start += CHUNK) {
        unsigned count = min(task.chunks - start, (unsigned)CHUNK);
        __syncthreads();
        if (warp < HEADS_OF(task)) {
            for (unsigned c = lane; c < CHUNK; c += 32) {
                const float* partial = partial_of(args, task.row, task.first_head + warp, dim, start + min(c, count - 1)) + dim;
                float factor = c < count ? expf(__ldcg(partial) - highest) : 0.0f;
                memory.scores[warp][c] = factor;
                if (c < count) total += __ldcg(partial + 1) * factor;
            }
        }
        __syncthreads();
        UNROLL_BY(1)
        for (unsigned first = 0; first < count; first += JOINED) {
            float now[JOINED][OWN_COLUMNS];
            UNROLL
            for (int c = 0; c < JOINED; c++) {
                UNROLL
                for (int i = 0; i < OWN_COLUMNS; i++) now[c][i] = next[c][i];
            }
            load_joined(partials, start + first + JOINED, task.chunks, dim + 2, next);
            UNROLL
            for (int c = 0; c < JOINED; c++) {
                UNROLL
                for (int i = 0; i < OWN_COLUMNS; i++) sums[i] = fmaf(now[c][i], memory.scores[min(i * THREADS + thread, columns - 1) / dim][first + c], sums[i]);
            }
        }
    }
    if (warp < HEADS_OF(task)) {
        total = sum_of_warp(total);
        if (lane == 0) memory.total[warp] = total;
    }
    UNROLL
    for (int i = 0; i < OWN_COLUMNS; i++)
        if (i * THREADS + thread < columns) memory.sums[i * THREADS + thread] = sums[i];
    __syncthreads();
    UNROLL_BY(1)
    for (unsigned column = thread; column < columns; column += THREADS) store_result(args, task.row, task.first_head * dim + column, dim, __fdiv_rn(memory.sums[column], memory.total[column / dim]));
}

KERNEL(attend, Attend, THREADS, (ROPE && CACHE == 0 ? 1 : ROPE || MOST > 128 || CACHE == 0 ? 2 : 3)) {
    SHARED(Memory, shared, [1]);
    Memory& memory = shared[0];
    unsigned thread = threadIdx.x, dim = DIM_OF(args), group = args.query_heads / args.kv_heads, batches = (group + HEADS - 1) / HEADS;
    Task task;
    if (!ROPE) {
        allow_successor();
        wait_for_predecessor();
    }
    task.row = blockIdx.z;
    // With ROPE this comes before the wait: see copy.cu. Past the nearest cache, which may hold the last step's.
    const StepRow* step = args.step + task.row;
    unsigned sequence = __ldcg(&step->sequence);
    task.position = __ldcg(&step->position);
    task.chunk = blockIdx.x;
    task.chunks = task.position / CHUNK + 1;
    if (task.chunk >= task.chunks) return;
    task.kv_head = blockIdx.y / batches;
    unsigned skipped = blockIdx.y % batches * HEADS;
    task.heads = QUERIES ? QUERIES : min(group - skipped, (unsigned)HEADS);
    task.first_head = task.kv_head * group + skipped;
    size_t vectors = vector_at(sequence, task.kv_head, args.kv_heads, 0, args.context), at = vectors + task.chunk * CHUNK;
    task.keys = args.keys + at * vector_bytes(dim);
    task.values = args.values + at * vector_bytes(dim);
    task.key_scales = args.key_scales + at;
    task.value_scales = args.value_scales + at;
    task.count = min(task.position + 1 - task.chunk * CHUNK, (unsigned)CHUNK);
    // With ROPE the row's own vectors are not there yet.
    bool own = ROPE && task.chunk + 1 == task.chunks;
    task.known = own ? task.count - 1 : task.count;
    Share share = share_of(dim);
    Ahead ahead;
    load_ahead(task, share, dim, ahead);
    if (ROPE) {
        allow_successor();
        wait_for_predecessor();
    }
    load_query(args, task, memory, dim);
    __syncthreads();
    Scale key_scale = {1.0f, 1.0f}, value_scale = {1.0f, 1.0f};
    if (own) {
        key_scale = vector_scale(memory.key, dim, thread % 32);
        value_scale = vector_scale(memory.value, dim, thread % 32);
        // Blocks with other query heads of the same key head write the same.
        store_vector(args.keys, args.key_scales, vectors + task.position, memory.key, dim, key_scale, thread, THREADS);
        store_vector(args.values, args.value_scales, vectors + task.position, memory.value, dim, value_scale, thread, THREADS);
    }
    score_chunk(args, task, memory, dim, ahead, key_scale);
    __syncthreads();
    weigh(task, memory, value_scale);
    __syncthreads();
    sum_values(task, memory, share, dim, ahead, value_scale);
    __syncthreads();
    unsigned columns = HEADS_OF(task) * dim;
    UNROLL_BY(1)
    for (unsigned column = thread; column < columns; column += THREADS) {
        float sum = memory.sums[column];
        for (unsigned g = 1; g < share.groups; g++) sum += memory.sums[g * columns + column];
        unsigned head = column / dim;
        if (task.chunks == 1)
            store_result(args, task.row, task.first_head * dim + column, dim, __fdiv_rn(sum, memory.total[head]));
        else
            partial_of(args, task.row, task.first_head + head, dim, task.chunk)[column % dim] = sum;
    }
    if (task.chunks == 1) return;
    if (thread < HEADS_OF(task)) {
        float* partial = partial_of(args, task.row, task.first_head + thread, dim, task.chunk);
        partial[dim] = memory.highest[thread];
        partial[dim + 1] = memory.total[thread];
    }
    __syncthreads();
    if (thread == 0) {
        // What the block has written is seen by whom sees the count.
        __threadfence();
        memory.arrived = atomicInc(args.counters + (size_t)task.row * args.kv_heads * batches + blockIdx.y, task.chunks - 1);
        __threadfence();
    }
    __syncthreads();
    if (memory.arrived != task.chunks - 1) return;
    join(args, task, memory, dim);
}
