// Causal attention of up to 8 query heads that share a key/value head. A block has a chunk of 64 positions of a row; the last block to be done
// with a row and head joins the chunks, in their order. A chunk's sums and the join depend on the row's position alone.
//
// ROPE: the row is the step's only one; queries and the key are rotated here, and the key and value stored. Older keys and values are then
// on their way before the kernel that makes the query has ended. QUANTIZE: out for the product that follows; dim % 32 = 0.
#include "cache.cuh"
#include "rotate.cuh"

#define THREADS 256
#define WARPS 8
#define CHUNK 64
#define HEADS 8
// Positions that lanes hold keys and values of before they are asked for.
#define AHEAD 4
#define LOWEST bits_to_float(0xff7fffffu)

struct Memory {
    ALIGNED(16) float query[HEADS][MOST_DIM];
    float scores[HEADS][CHUNK];
    // Of each warp; of the block when chunks are joined.
    float sums[WARPS][1024];
    float highest[HEADS], total[HEADS];
    float key[MOST_DIM], value[MOST_DIM];
    unsigned arrived;
};

// What a block works on.
struct Task {
    unsigned row, first_head, heads, kv_head, position, sequence, chunk, chunks;
    // Lanes that share a vector, and vectors that a warp has at a time.
    unsigned sharing, at_once;
    const unsigned char* keys;
    const unsigned char* values;
    const float* key_scales;
    const float* value_scales;
};

__device__ inline void load_query(const Attend& args, const Task& task, Memory& memory) {
    unsigned dim = args.dim, padded = (dim + 7) / 8 * 8;
    const float* row = args.qkv + (size_t)task.row * (args.query_heads + 2 * args.kv_heads) * dim;
    const float* q = row + task.first_head * dim;
    const float* angles = args.table + (size_t)task.position * dim;
    if (!ROPE) {
        for (unsigned i = threadIdx.x; i < HEADS * padded; i += THREADS) {
            unsigned head = i / padded, column = i % padded;
            memory.query[head][column] = head < task.heads && column < dim ? q[head * dim + column] : 0.0f;
        }
        return;
    }
    unsigned half = dim / 2;
    for (unsigned i = threadIdx.x; i < HEADS * half; i += THREADS) {
        unsigned head = i / half, column = i % half;
        float2 v = head < task.heads ? rotated(q + head * dim, angles, column, dim) : make_float2(0.0f, 0.0f);
        memory.query[head][column] = v.x;
        memory.query[head][column + half] = v.y;
    }
    for (unsigned i = threadIdx.x; i < HEADS * (padded - dim); i += THREADS) memory.query[i / (padded - dim)][dim + i % (padded - dim)] = 0.0f;
    if (task.chunk + 1 != task.chunks) return;
    const float* key = row + (args.query_heads + task.kv_head) * dim;
    for (unsigned i = threadIdx.x; i < half; i += THREADS) {
        float2 v = rotated(key, angles, i, dim);
        memory.key[i] = v.x;
        memory.key[i + half] = v.y;
    }
    for (unsigned i = threadIdx.x; i < dim; i += THREADS) memory.value[i] = key[args.kv_heads * dim + i];
}

// Which of the chunk's positions a thread has, the turn given; the chunk's end and beyond are possible.
__device__ inline unsigned position_of(const Task& task, unsigned turn) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return (turn * WARPS + warp) * task.at_once + lane / task.sharing;
}

// Turns of a warp for a chunk.
__device__ inline unsigned turns_of(const Task& task) { return (CHUNK + WARPS * task.at_once - 1) / (WARPS * task.at_once); }

// The first AHEAD turns; only positions below limit are there.
__device__ inline void load_ahead(const unsigned char* plane, const Task& task, unsigned dim, unsigned limit, Eight (&ahead)[AHEAD]) {
    unsigned piece = threadIdx.x % task.sharing, pieces = (dim + 7) / 8;
    UNROLL
    for (int turn = 0; turn < AHEAD; turn++) {
        unsigned at = position_of(task, turn);
        if (at < limit && piece < pieces) ahead[turn] = load_eight(plane + at * vector_bytes(dim), piece);
    }
}

// A lane's part of the queries.
struct Query {
    float part[HEADS][8];
};

__device__ inline void score_turn(const Attend& args, const Task& task, Memory& memory, const Query& query, unsigned count, unsigned at, const float (&k)[8]) {
    float scale = args.scale * (CACHE == 2 && at < count ? task.key_scales[at] : 1.0f);
    UNROLL
    for (int h = 0; h < HEADS; h++) {
        if (h < task.heads) {
            float sum = 0.0f;
            UNROLL
            for (int i = 0; i < 8; i++) sum = fmaf(query.part[h][i], k[i], sum);
            for (unsigned mask = task.sharing / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, (int)mask);
            if (threadIdx.x % task.sharing == 0 && at < CHUNK) memory.scores[h][at] = at < count ? sum * scale : LOWEST;
        }
    }
}

__device__ inline void score_chunk(const Attend& args, const Task& task, Memory& memory, unsigned count, unsigned known, const Eight (&ahead)[AHEAD]) {
    unsigned piece = threadIdx.x % task.sharing, pieces = (args.dim + 7) / 8;
    Query query;
    UNROLL
    for (int h = 0; h < HEADS; h++) {
        UNROLL
        for (int i = 0; i < 8; i += 4) {
            float4 v = piece < pieces ? *(const float4*)&memory.query[h][piece * 8 + i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            query.part[h][i] = v.x, query.part[h][i + 1] = v.y, query.part[h][i + 2] = v.z, query.part[h][i + 3] = v.w;
        }
    }
    unsigned turns = turns_of(task);
    UNROLL
    for (unsigned turn = 0; turn < AHEAD; turn++) {
        unsigned at = position_of(task, turn);
        float k[8] = {};
        if (at < count && piece < pieces) widen(at < known ? ahead[turn] : load_eight(task.keys + at * vector_bytes(args.dim), piece), k);
        if (turn < turns) score_turn(args, task, memory, query, count, at, k);
    }
    UNROLL_BY(1)
    for (unsigned turn = AHEAD; turn < turns; turn++) {
        unsigned at = position_of(task, turn);
        float k[8] = {};
        if (at < count && piece < pieces) widen(load_eight(task.keys + at * vector_bytes(args.dim), piece), k);
        score_turn(args, task, memory, query, count, at, k);
    }
}

// Scores to weights; a warp has a head.
__device__ inline void weigh(const Task& task, Memory& memory, unsigned count) {
    unsigned head = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= task.heads) return;
    float a = memory.scores[head][lane], b = memory.scores[head][lane + 32];
    float highest = fmaxf(a, b);
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) highest = fmaxf(highest, shuffle_xor(highest, mask));
    a = lane < count ? expf(a - highest) : 0.0f;
    b = lane + 32 < count ? expf(b - highest) : 0.0f;
    float total = a + b;
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
    // An INT8 value's scale goes with its weight.
    if (CACHE == 2 && lane < count) a *= task.value_scales[lane];
    if (CACHE == 2 && lane + 32 < count) b *= task.value_scales[lane + 32];
    memory.scores[head][lane] = a;
    memory.scores[head][lane + 32] = b;
    if (lane == 0) memory.highest[head] = highest, memory.total[head] = total;
}

__device__ inline void add_values(const Memory& memory, unsigned from, unsigned to, unsigned at, const float (&v)[8], float (&sums)[HEADS][8]) {
    UNROLL
    for (int h = 0; h < HEADS; h++) {
        if (from + h < to) {
            float weight = memory.scores[from + h][at];
            UNROLL
            for (int i = 0; i < 8; i++) sums[h][i] = fmaf(weight, v[i], sums[h][i]);
        }
    }
}

// Each warp's sum of its positions' values, for heads from..to, [head, dim].
__device__ inline void sum_values(const Attend& args, const Task& task, Memory& memory, unsigned from, unsigned to, unsigned count, unsigned known,
                                  const Eight (&ahead)[AHEAD]) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = lane % task.sharing, pieces = (args.dim + 7) / 8;
    float sums[HEADS][8] = {};
    unsigned turns = turns_of(task);
    UNROLL
    for (unsigned turn = 0; turn < AHEAD; turn++) {
        unsigned at = position_of(task, turn);
        if (turn < turns && at < count && piece < pieces) {
            float v[8];
            widen(at < known ? ahead[turn] : load_eight(task.values + at * vector_bytes(args.dim), piece), v);
            add_values(memory, from, to, at, v, sums);
        }
    }
    UNROLL_BY(1)
    for (unsigned turn = AHEAD; turn < turns; turn++) {
        unsigned at = position_of(task, turn);
        if (at < count && piece < pieces) {
            float v[8];
            widen(load_eight(task.values + at * vector_bytes(args.dim), piece), v);
            add_values(memory, from, to, at, v, sums);
        }
    }
    UNROLL
    for (int h = 0; h < HEADS; h++) {
        if (from + h < to) {
            UNROLL
            for (int i = 0; i < 8; i++) {
                for (unsigned mask = task.sharing; mask < 32; mask *= 2) sums[h][i] += shuffle_xor(sums[h][i], (int)mask);
                if (lane < pieces && piece * 8 + i < args.dim) memory.sums[warp][h * args.dim + piece * 8 + i] = sums[h][i];
            }
        }
    }
}

// The result's columns of the task's heads; whole warps come here.
__device__ inline void store_result(const Attend& args, const Task& task, unsigned column, float value) {
    unsigned width = args.query_heads * args.dim, at = task.first_head * args.dim + column;
    if (args.out) args.out[(size_t)task.row * width + at] = value;
    if (QUANTIZE == 2) {
        signed char* codes = args.codes + (size_t)task.row * args.per * (SEGMENTS * UNIT);
        quantize_lane(codes, args.spans + (size_t)task.row * args.per * SEGMENTS, at / UNIT, args.per, at % UNIT, value);
    }
}

__device__ inline float* partial_of(const Attend& args, const Task& task, unsigned head, unsigned chunk) {
    return args.partials + (((size_t)task.row * args.query_heads + task.first_head + head) * args.chunks + chunk) * (args.dim + 2);
}

// The chunks' sums by their maxima.
__device__ inline void join(const Attend& args, const Task& task, Memory& memory) {
    unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32, dim = args.dim, columns = task.heads * dim;
    if (warp < task.heads) {
        float highest = LOWEST, total = 0.0f;
        for (unsigned c = lane; c < task.chunks; c += 32) highest = fmaxf(highest, __ldcg(partial_of(args, task, warp, c) + dim));
        UNROLL
        for (int mask = 16; mask > 0; mask /= 2) highest = fmaxf(highest, shuffle_xor(highest, mask));
        for (unsigned c = lane; c < task.chunks; c += 32) {
            const float* partial = partial_of(args, task, warp, c);
            total += __ldcg(partial + dim + 1) * expf(__ldcg(partial + dim) - highest);
        }
        UNROLL
        for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
        if (lane == 0) memory.highest[warp] = highest, memory.total[warp] = total;
    }
    float* sums = &memory.sums[0][0];
    for (unsigned start = 0; start < task.chunks; start += CHUNK) {
        unsigned count = min(task.chunks - start, (unsigned)CHUNK);
        __syncthreads();
        for (unsigned i = thread; i < task.heads * count; i += THREADS)
            memory.scores[i / count][i % count] = expf(__ldcg(partial_of(args, task, i / count, start + i % count) + dim) - memory.highest[i / count]);
        __syncthreads();
        UNROLL_BY(1)
        for (unsigned column = thread; column < columns; column += THREADS) {
            unsigned head = column / dim;
            const float* partial = partial_of(args, task, head, start) + column % dim;
            float sum = start == 0 ? 0.0f : sums[column];
            UNROLL_BY(8)
            for (unsigned c = 0; c < count; c++) sum = fmaf(__ldcg(partial + (size_t)c * (dim + 2)), memory.scores[head][c], sum);
            sums[column] = sum;
        }
    }
    UNROLL_BY(1)
    for (unsigned column = thread; column < columns; column += THREADS) store_result(args, task, column, __fdiv_rn(sums[column], memory.total[column / dim]));
}

KERNEL(attend, Attend, THREADS, 2) {
    SHARED(Memory, shared, [1]);
    Memory& memory = shared[0];
    unsigned thread = threadIdx.x, dim = args.dim, group = args.query_heads / args.kv_heads, batches = (group + HEADS - 1) / HEADS;
    Task task;
    if (!ROPE) {
        allow_successor();
        wait_for_predecessor();
    }
    task.row = blockIdx.z;
    StepRow step = args.step[task.row];
    task.position = step.position;
    task.sequence = step.sequence;
    task.chunk = blockIdx.x;
    task.chunks = task.position / CHUNK + 1;
    if (task.chunk >= task.chunks) return;
    task.kv_head = blockIdx.y / batches;
    unsigned skipped = blockIdx.y % batches * HEADS;
    task.heads = min(group - skipped, (unsigned)HEADS);
    task.first_head = task.kv_head * group + skipped;
    task.sharing = 1;
    while (task.sharing * 8 < dim) task.sharing *= 2;
    task.at_once = 32 / task.sharing;
    size_t vectors = vector_at(task.sequence, task.kv_head, args.kv_heads, 0, args.context), at = vectors + task.chunk * CHUNK;
    task.keys = args.keys + at * vector_bytes(dim);
    task.values = args.values + at * vector_bytes(dim);
    task.key_scales = args.key_scales + at;
    task.value_scales = args.value_scales + at;
    unsigned count = min(task.position + 1 - task.chunk * CHUNK, (unsigned)CHUNK);
    // With ROPE the row's own vectors are not there yet.
    bool own = ROPE && task.chunk + 1 == task.chunks;
    unsigned known = own ? count - 1 : count;
    Eight keys[AHEAD], values[AHEAD];
    load_ahead(task.keys, task, dim, known, keys);
    load_ahead(task.values, task, dim, known, values);
    if (ROPE) {
        allow_successor();
        wait_for_predecessor();
    }
    load_query(args, task, memory);
    __syncthreads();
    if (own) {
        // Blocks with other query heads of the same key head write the same.
        store_vector(args.keys, args.key_scales, vectors + task.position, memory.key, dim, thread, THREADS);
        store_vector(args.values, args.value_scales, vectors + task.position, memory.value, dim, thread, THREADS);
        __syncthreads();
    }
    score_chunk(args, task, memory, count, known, keys);
    __syncthreads();
    weigh(task, memory, count);
    __syncthreads();
    unsigned most = 1024 / dim;
    for (unsigned from = 0; from < task.heads; from += most) {
        unsigned to = min(from + most, task.heads);
        sum_values(args, task, memory, from, to, count, known, values);
        __syncthreads();
        for (unsigned i = thread; i < (to - from) * dim; i += THREADS) {
            float sum = memory.sums[0][i];
            UNROLL
            for (int w = 1; w < WARPS; w++) sum += memory.sums[w][i];
            unsigned head = from + i / dim;
            if (task.chunks == 1)
                store_result(args, task, from * dim + i, __fdiv_rn(sum, memory.total[head]));
            else
                partial_of(args, task, head, task.chunk)[i % dim] = sum;
        }
        __syncthreads();
    }
    if (task.chunks == 1) return;
    if (thread < task.heads) {
        float* partial = partial_of(args, task, thread, task.chunk);
        partial[dim] = memory.highest[thread];
        partial[dim + 1] = memory.total[thread];
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) memory.arrived = atomicInc(args.counters + (size_t)task.row * args.kv_heads * batches + blockIdx.y, task.chunks - 1);
    __syncthreads();
    if (memory.arrived != task.chunks - 1) return;
    __threadfence();
    join(args, task, memory);
}
