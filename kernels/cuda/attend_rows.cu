// Causal attention of many rows: what attend.cu computes, to the bit, four rows at a time. A block has a chunk of 64 positions, four rows of
// the step (of any sequences) and up to 8 query heads that share a key/value head. 64 threads have a row: they multiply four keys with each
// load of a query, and then have two columns of values each, so that nothing but scores goes through shared memory.
#include "attention.cuh"

#define THREADS 256
#define ROWS 4
#define ROW_THREADS (THREADS / ROWS)
#define HEADS (QUERIES ? QUERIES : 8)
#define HEADS_OF(task) (QUERIES ? QUERIES : (task).heads)
// Threads that share a position's key, each with every fourth piece of 8 columns, and positions of a thread.
#define QUARTERS 4
#define KEYS (CHUNK / (ROW_THREADS / QUARTERS))
#define DIM_OF(args) (DIM ? DIM : (args).dim)
#define MOST (DIM ? DIM : MOST_DIM)
#define PIECES ((MOST + 7) / 8)
#define OWN_PIECES ((PIECES + QUARTERS - 1) / QUARTERS)
// Narrow heads have fewer pairs of columns than a row has threads: then threads share the heads.
#define SHARERS (MOST <= 64 ? 2 : 1)
#define OWN_HEADS ((HEADS + SHARERS - 1) / SHARERS)
#define PAIRS (ROW_THREADS / SHARERS)
#define TURNS ((MOST / 2 + PAIRS - 1) / PAIRS)

struct Memory {
    // Queries, then results.
    ALIGNED(16) float columns[ROWS][HEADS][PIECES * 8];
    // Of positions; of chunks when they are joined.
    ALIGNED(16) float scores[ROWS][HEADS][CHUNK];
    float highest[ROWS][HEADS], total[ROWS][HEADS];
    unsigned arrived[ROWS];
};

// A row's part of the block's work.
struct Task {
    unsigned slot, row, thread, first_head, heads, chunk, chunks, count;
    // The chunk is one of the row's.
    bool live;
    // The chunk's first key and value in the cache.
    size_t vectors;
};

__device__ inline Task task_of(const Attend& args, unsigned dim) {
    unsigned group = args.query_heads / args.kv_heads, batches = (group + HEADS - 1) / HEADS, skipped = blockIdx.y % batches * HEADS;
    unsigned kv_head = blockIdx.y / batches;
    Task task;
    task.slot = threadIdx.x / ROW_THREADS;
    task.thread = threadIdx.x % ROW_THREADS;
    task.row = blockIdx.z * ROWS + task.slot;
    task.heads = QUERIES ? QUERIES : min(group - skipped, (unsigned)HEADS);
    task.first_head = kv_head * group + skipped;
    task.chunk = blockIdx.x;
    StepRow step = args.step[min(task.row, args.rows - 1)];
    task.chunks = step.position / CHUNK + 1;
    task.live = task.row < args.rows && task.chunk < task.chunks;
    task.count = task.live ? min(step.position + 1 - task.chunk * CHUNK, (unsigned)CHUNK) : 0;
    task.vectors = vector_at(step.sequence, kv_head, args.kv_heads, task.chunk * CHUNK, args.context);
    return task;
}

__device__ inline void load_query(const Attend& args, const Task& task, Memory& memory, unsigned dim) {
    if (!task.live) return;
    unsigned padded = (dim + 7) / 8 * 8;
    const float* q = args.qkv + (size_t)task.row * (args.query_heads + 2 * args.kv_heads) * dim + task.first_head * dim;
    for (unsigned i = task.thread; i < HEADS_OF(task) * padded; i += ROW_THREADS) {
        unsigned head = i / padded, column = i % padded;
        memory.columns[task.slot][head][column] = column < dim ? q[head * dim + column] : 0.0f;
    }
}

// The position of a thread's i-th key.
__device__ inline unsigned key_of(const Task& task, int i) { return task.thread / QUARTERS + i * (ROW_THREADS / QUARTERS); }

__device__ inline void load_keys(const Attend& args, const Task& task, unsigned dim, unsigned piece, Eight (&keys)[KEYS]) {
    const unsigned char* chunk = args.keys + task.vectors * vector_bytes(dim);
    UNROLL
    for (int i = 0; i < KEYS; i++)
        if (key_of(task, i) < task.count && piece * 8 < dim) keys[i] = load_eight(chunk + key_of(task, i) * vector_bytes(dim), piece);
}

__device__ inline void score(const Attend& args, const Task& task, Memory& memory, unsigned dim) {
    unsigned quarter = task.thread % QUARTERS;
    float sums[KEYS][HEADS] = {};
    Eight next[KEYS];
    load_keys(args, task, dim, quarter, next);
    UNROLL
    for (int i = 0; i < OWN_PIECES; i++) {
        unsigned piece = i * QUARTERS + quarter;
        float k[KEYS][8];
        UNROLL
        for (int j = 0; j < KEYS; j++) widen(next[j], k[j]);
        if (i + 1 < OWN_PIECES) load_keys(args, task, dim, piece + QUARTERS, next);
        if (piece * 8 < dim) {
            UNROLL
            for (int h = 0; h < HEADS; h++) {
                if (h < HEADS_OF(task)) {
                    float4 a = *(const float4*)&memory.columns[task.slot][h][piece * 8], b = *(const float4*)&memory.columns[task.slot][h][piece * 8 + 4];
                    UNROLL
                    for (int j = 0; j < KEYS; j++) {
                        sums[j][h] = fmaf(a.x, k[j][0], sums[j][h]);
                        sums[j][h] = fmaf(a.y, k[j][1], sums[j][h]);
                        sums[j][h] = fmaf(a.z, k[j][2], sums[j][h]);
                        sums[j][h] = fmaf(a.w, k[j][3], sums[j][h]);
                        sums[j][h] = fmaf(b.x, k[j][4], sums[j][h]);
                        sums[j][h] = fmaf(b.y, k[j][5], sums[j][h]);
                        sums[j][h] = fmaf(b.z, k[j][6], sums[j][h]);
                        sums[j][h] = fmaf(b.w, k[j][7], sums[j][h]);
                    }
                }
            }
        }
    }
    UNROLL
    for (int j = 0; j < KEYS; j++) {
        unsigned at = key_of(task, j);
        float scale = args.scale * (CACHE == 2 && at < task.count ? args.key_scales[task.vectors + at] : 1.0f);
        UNROLL
        for (int h = 0; h < HEADS; h++) {
            sums[j][h] += shuffle_xor(sums[j][h], 1);
            sums[j][h] += shuffle_xor(sums[j][h], 2);
            if (quarter == 0 && h < HEADS_OF(task)) memory.scores[task.slot][h][at] = sums[j][h] * scale;
        }
    }
}

// Scores to weights; a row's two warps have every second head each.
__device__ inline void weigh(const Attend& args, const Task& task, Memory& memory) {
    unsigned lane = threadIdx.x % 32;
    bool first = lane < task.count, second = lane + 32 < task.count;
    UNROLL
    for (int i = 0; i < (HEADS + 1) / 2; i++) {
        unsigned head = task.thread / 32 + 2 * i;
        if (head < HEADS_OF(task)) {
            float* scores = memory.scores[task.slot][head];
            float a = first ? scores[lane] : LOWEST, b = second ? scores[lane + 32] : LOWEST;
            float highest = largest_of_warp(fmaxf(a, b));
            a = first ? expf(a - highest) : 0.0f;
            b = second ? expf(b - highest) : 0.0f;
            float total = sum_of_warp(a + b);
            // An INT8 value's scale goes with its weight.
            if (CACHE == 2 && first) a *= args.value_scales[task.vectors + lane];
            if (CACHE == 2 && second) b *= args.value_scales[task.vectors + lane + 32];
            scores[lane] = a;
            scores[lane + 32] = b;
            if (lane == 0) memory.highest[task.slot][head] = highest, memory.total[task.slot][head] = total;
        }
    }
}

// Positions whose values are summed together, in attend.cu by a group of threads.
__device__ inline unsigned positions_of(unsigned dim) { return dim <= 64 ? 8 : dim <= 128 ? 16 : 32; }

// A thread's i-th head.
__device__ inline unsigned head_of(const Task& task, int i) { return task.thread / PAIRS + i * SHARERS; }

// Positions whose values a thread holds before it needs them.
#define AHEAD 8

template <bool FULL>
__device__ inline void load_values(const Attend& args, const Task& task, unsigned dim, unsigned pair, unsigned first, Pair (&values)[AHEAD]) {
    const unsigned char* chunk = args.values + (task.vectors + first) * vector_bytes(dim);
    UNROLL
    for (int j = 0; j < AHEAD; j++)
        if (FULL || first + j < task.count) values[j] = load_pair(chunk + j * vector_bytes(dim), pair);
}

// Two columns of each head of a thread's share, summed over the chunk. FULL: there are values at all of its positions.
template <bool FULL>
__device__ inline void sum_values(const Attend& args, const Task& task, const Memory& memory, unsigned dim, unsigned pair, float2 (&totals)[OWN_HEADS]) {
    unsigned positions = positions_of(dim);
    float2 sums[OWN_HEADS] = {};
    Pair next[AHEAD];
    load_values<FULL>(args, task, dim, pair, 0, next);
    UNROLL_BY(1)
    for (unsigned first = 0; first < CHUNK; first += AHEAD) {
        Pair now[AHEAD];
        UNROLL
        for (int j = 0; j < AHEAD; j++) now[j] = next[j];
        if (first + AHEAD < CHUNK) load_values<FULL>(args, task, dim, pair, first + AHEAD, next);
        UNROLL
        for (int j = 0; j < AHEAD; j += 4) {
            unsigned at = first + j;
            if (FULL || at < task.count) {
                float2 v[4];
                UNROLL
                for (int k = 0; k < 4; k++) v[k] = FULL || at + k < task.count ? widen(now[j + k]) : make_float2(0.0f, 0.0f);
                UNROLL
                for (int i = 0; i < OWN_HEADS; i++) {
                    if (head_of(task, i) < HEADS_OF(task)) {
                        float4 w = *(const float4*)&memory.scores[task.slot][head_of(task, i)][at];
                        sums[i].x = fmaf(w.x, v[0].x, sums[i].x), sums[i].y = fmaf(w.x, v[0].y, sums[i].y);
                        sums[i].x = fmaf(w.y, v[1].x, sums[i].x), sums[i].y = fmaf(w.y, v[1].y, sums[i].y);
                        sums[i].x = fmaf(w.z, v[2].x, sums[i].x), sums[i].y = fmaf(w.z, v[2].y, sums[i].y);
                        sums[i].x = fmaf(w.w, v[3].x, sums[i].x), sums[i].y = fmaf(w.w, v[3].y, sums[i].y);
                    }
                }
            }
            if ((at + 4) % positions == 0) {
                UNROLL
                for (int i = 0; i < OWN_HEADS; i++) {
                    totals[i].x = at + 4 == positions ? sums[i].x : totals[i].x + sums[i].x;
                    totals[i].y = at + 4 == positions ? sums[i].y : totals[i].y + sums[i].y;
                    sums[i] = make_float2(0.0f, 0.0f);
                }
            }
        }
    }
}

// A thread's columns of the chunk, to where they go.
__device__ inline void take_values(const Attend& args, const Task& task, Memory& memory, unsigned dim) {
    UNROLL
    for (int turn = 0; turn < TURNS; turn++) {
        unsigned pair = turn * PAIRS + task.thread % PAIRS;
        if (pair * 2 < dim && task.live) {
            float2 totals[OWN_HEADS];
            if (task.count == CHUNK)
                sum_values<true>(args, task, memory, dim, pair, totals);
            else
                sum_values<false>(args, task, memory, dim, pair, totals);
            UNROLL
            for (int i = 0; i < OWN_HEADS; i++) {
                unsigned head = head_of(task, i);
                if (head < HEADS_OF(task)) {
                    float* to = task.chunks == 1 ? memory.columns[task.slot][head] : partial_of(args, task.row, task.first_head + head, dim, task.chunk);
                    to[pair * 2] = totals[i].x;
                    to[pair * 2 + 1] = totals[i].y;
                }
            }
        }
    }
}

// The results of a row, by the sums of their weights.
__device__ inline void store_row(const Attend& args, const Task& task, const Memory& memory, unsigned dim) {
    for (unsigned column = task.thread; column < HEADS_OF(task) * dim; column += ROW_THREADS) {
        unsigned head = column / dim;
        float value = __fdiv_rn(memory.columns[task.slot][head][column % dim], memory.total[task.slot][head]);
        store_result(args, task.row, task.first_head * dim + column, dim, value);
    }
}

// What 64 chunks from start on count; and the sum of all their weights in total, a part of it in each lane.
__device__ inline void weigh_chunks(const Attend& args, const Task& task, Memory& memory, unsigned dim, unsigned start, const float (&highest)[(HEADS + 1) / 2],
                                    float (&totals)[(HEADS + 1) / 2]) {
    unsigned lane = threadIdx.x % 32, count = min(task.chunks - start, (unsigned)CHUNK);
    UNROLL
    for (int i = 0; i < (HEADS + 1) / 2; i++) {
        unsigned head = task.thread / 32 + 2 * i;
        if (head < HEADS_OF(task)) {
            for (unsigned c = lane; c < CHUNK; c += 32) {
                const float* partial = partial_of(args, task.row, task.first_head + head, dim, start + min(c, count - 1)) + dim;
                float factor = c < count ? expf(__ldcg(partial) - highest[i]) : 0.0f;
                memory.scores[task.slot][head][c] = factor;
                if (c < count) totals[i] += __ldcg(partial + 1) * factor;
            }
        }
    }
}

// Columns of a result that a thread has, and chunks whose sums it holds at a time.
#define OWN_COLUMNS ((HEADS * MOST + ROW_THREADS - 1) / ROW_THREADS)
#define JOINED (MOST > 128 ? 1 : 2)

// Adds 64 chunks from start on, by what they count.
__device__ inline void add_chunks(const Attend& args, const Task& task, const Memory& memory, unsigned dim, unsigned start, float (&sums)[OWN_COLUMNS]) {
    unsigned count = min(task.chunks - start, (unsigned)CHUNK), columns = HEADS_OF(task) * dim, pitch = dim + 2;
    const float* partials = partial_of(args, task.row, task.first_head, dim, start);
    UNROLL_BY(1)
    for (unsigned first = 0; first < count; first += JOINED) {
        float now[JOINED][OWN_COLUMNS];
        UNROLL
        for (int c = 0; c < JOINED; c++) {
            UNROLL
            for (int i = 0; i < OWN_COLUMNS; i++) {
                unsigned column = min(i * ROW_THREADS + task.thread, columns - 1), chunk = min(first + c, count - 1);
                now[c][i] = __ldcg(partials + ((column / dim * args.chunks + chunk) * pitch + column % dim));
            }
        }
        UNROLL
        for (int c = 0; c < JOINED; c++) {
            // What is past the last chunk counts nothing.
            UNROLL
            for (int i = 0; i < OWN_COLUMNS; i++)
                if (first + c < count) sums[i] = fmaf(now[c][i], memory.scores[task.slot][min(i * ROW_THREADS + task.thread, columns - 1) / dim][first + c], sums[i]);
        }
    }
}

// The chunks' sums by their maxima, in their order. All threads come here; those of other rows wait.
__device__ inline void join(const Attend& args, const Task& task, Memory& memory, unsigned dim, bool mine) {
    unsigned lane = threadIdx.x % 32;
    float highest[(HEADS + 1) / 2], totals[(HEADS + 1) / 2] = {};
    UNROLL
    for (int i = 0; i < (HEADS + 1) / 2; i++) {
        unsigned head = task.thread / 32 + 2 * i;
        highest[i] = LOWEST;
        if (mine && head < HEADS_OF(task)) {
            UNROLL_BY(1)
            for (unsigned c = lane; c < task.chunks; c += 32) highest[i] = fmaxf(highest[i], __ldcg(partial_of(args, task.row, task.first_head + head, dim, c) + dim));
            highest[i] = largest_of_warp(highest[i]);
        }
    }
    float sums[OWN_COLUMNS] = {};
    for (unsigned start = 0; start < args.chunks; start += CHUNK) {
        bool some = mine && start < task.chunks;
        __syncthreads();
        if (some) weigh_chunks(args, task, memory, dim, start, highest, totals);
        __syncthreads();
        if (some) add_chunks(args, task, memory, dim, start, sums);
    }
    UNROLL
    for (int i = 0; i < OWN_COLUMNS; i++) {
        unsigned column = i * ROW_THREADS + task.thread;
        if (mine && column < HEADS_OF(task) * dim) memory.columns[task.slot][column / dim][column % dim] = sums[i];
    }
    UNROLL
    for (int i = 0; i < (HEADS + 1) / 2; i++) {
        unsigned head = task.thread / 32 + 2 * i;
        if (mine && head < HEADS_OF(task)) {
            totals[i] = sum_of_warp(totals[i]);
            if (lane == 0) memory.total[task.slot][head] = totals[i];
        }
    }
    __syncthreads();
    if (mine) store_row(args, task, memory, dim);
}

KERNEL(attend_rows, Attend, THREADS, (MOST > 128 || CACHE == 0 ? 1 : 2)) {
    SHARED(Memory, shared, [1]);
    SHARED(unsigned, lives, [ROWS]);
    Memory& memory = shared[0];
    unsigned dim = DIM_OF(args), group = args.query_heads / args.kv_heads, batches = (group + HEADS - 1) / HEADS;
    allow_successor();
    wait_for_predecessor();
    Task task = task_of(args, dim);
    if (task.thread == 0) lives[task.slot] = task.live, memory.arrived[task.slot] = 0;
    load_query(args, task, memory, dim);
    __syncthreads();
    unsigned living = 0;
    UNROLL
    for (int i = 0; i < ROWS; i++) living += lives[i];
    if (living == 0) return;
    if (task.live) score(args, task, memory, dim);
    __syncthreads();
    if (task.live) weigh(args, task, memory);
    __syncthreads();
    take_values(args, task, memory, dim);
    if (task.live && task.chunks > 1 && task.thread < HEADS_OF(task)) {
        float* partial = partial_of(args, task.row, task.first_head + task.thread, dim, task.chunk);
        partial[dim] = memory.highest[task.slot][task.thread];
        partial[dim + 1] = memory.total[task.slot][task.thread];
    }
    __syncthreads();
    if (task.live && task.chunks == 1) store_row(args, task, memory, dim);
    if (task.live && task.chunks > 1 && task.thread == 0) {
        // What the block has written is seen by whom sees the count.
        __threadfence();
        unsigned* counter = args.counters + (size_t)task.row * args.kv_heads * batches + blockIdx.y;
        memory.arrived[task.slot] = atomicInc(counter, task.chunks - 1) == task.chunks - 1;
        __threadfence();
    }
    __syncthreads();
    unsigned last = 0;
    UNROLL
    for (int i = 0; i < ROWS; i++) last += memory.arrived[i];
    if (last) join(args, task, memory, dim, memory.arrived[task.slot] != 0);
}
