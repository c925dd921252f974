// ROPE: query and key heads are rotated in place. STORE: keys and values go into the cache. A block has a head of a row.
#include "cache.cuh"
#include "rotate.cuh"

#define THREADS 128

KERNEL(rope_store_kv, RopeStoreKv, THREADS, 4) {
    SHARED(float, vector, [MOST_DIM]);
    unsigned thread = threadIdx.x, head = blockIdx.x, row = blockIdx.y, dim = args.dim;
    unsigned rotating = args.query_heads + args.kv_heads;
    allow_successor();
    wait_for_predecessor();
    StepRow step = args.step[row];
    float* x = args.qkv + ((size_t)row * (rotating + args.kv_heads) + head) * dim;
    if (ROPE && head < rotating) {
        const float* angles = args.table + (size_t)step.position * dim;
        for (unsigned i = thread; i < dim / 2; i += THREADS) {
            float2 v = rotated(x, angles, i, dim);
            vector[i] = x[i] = v.x;
            vector[i + dim / 2] = x[i + dim / 2] = v.y;
        }
    } else {
        for (unsigned i = thread; i < dim; i += THREADS) vector[i] = x[i];
    }
    if (!STORE || head < args.query_heads) return;
    __syncthreads();
    bool key = head < rotating;
    size_t at = vector_at(step.sequence, head - (key ? args.query_heads : rotating), args.kv_heads, step.position, args.context);
    Scale scale = vector_scale(vector, dim, thread % 32);
    store_vector(key ? args.keys : args.values, key ? args.key_scales : args.value_scales, at, vector, dim, scale, thread, THREADS);
}
