// The index of each row's largest value, the lowest of equals; NaN never wins. Blocks share a row, and the last one joins them.
#include "device.cuh"
#include "args.cuh"

#define THREADS 256

__device__ inline bool beats(Candidate a, Candidate b) { return a.value > b.value || (a.value == b.value && a.index < b.index); }

__device__ inline Candidate best_of_block(Candidate mine) {
    SHARED(Candidate, best, [THREADS]);
    __syncthreads();
    best[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && beats(best[threadIdx.x + half], best[threadIdx.x])) best[threadIdx.x] = best[threadIdx.x + half];
        __syncthreads();
    }
    return best[0];
}

KERNEL(argmax, Argmax, THREADS, 4) {
    SHARED(unsigned, arrived, [1]);
    unsigned row = blockIdx.y, blocks = gridDim.x;
    allow_successor();
    wait_for_predecessor();
    const float* x = args.x + (size_t)row * args.columns;
    Candidate mine = {bits_to_float(0xff800000u), 0xffffffffu};
    for (unsigned at = blockIdx.x * THREADS + threadIdx.x; at < args.columns; at += blocks * THREADS) {
        Candidate other = {x[at], at};
        if (beats(other, mine)) mine = other;
    }
    mine = best_of_block(mine);
    if (threadIdx.x == 0) {
        args.partials[(size_t)row * blocks + blockIdx.x] = mine;
        __threadfence();
        arrived[0] = atomicInc(args.counters + row, blocks - 1);
    }
    __syncthreads();
    if (arrived[0] != blocks - 1) return;
    __threadfence();
    Candidate best = {bits_to_float(0xff800000u), 0xffffffffu};
    for (unsigned at = threadIdx.x; at < blocks; at += THREADS) {
        const volatile Candidate* partial = args.partials + (size_t)row * blocks + at;
        Candidate other = {partial->value, partial->index};
        if (beats(other, best)) best = other;
    }
    best = best_of_block(best);
    if (threadIdx.x != 0) return;
    // Nothing but NaN and -inf: some token has to be named.
    unsigned token = best.index < args.columns ? best.index : 0;
    args.out[row] = token;
    if (args.next) {
        args.next[row].token = token;
        args.next[row].position += 1;
    }
}
