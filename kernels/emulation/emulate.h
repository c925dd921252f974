// CUDA for the host's C++ compiler, so that kernels can be tested where there is no GPU: blocks run one after the other, the threads of a
// block are fibers that take turns whenever they wait for each other. Shared memory is filled with NaNs before each block.
// One launch at a time.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define UNROLL
#define UNROLL_BY(count)
#define ALIGNED(bytes) alignas(bytes)
#define SHARED(type, name, extent) \
    static type name extent;       \
    emulation::shared(name, sizeof(name))

struct dim3 {
    unsigned x, y, z;
};
template <typename T>
struct alignas(2 * sizeof(T)) Two {
    T x, y;
};
template <typename T>
struct alignas(4 * sizeof(T)) Four {
    T x, y, z, w;
};
using uint2 = Two<unsigned>;
using int2 = Two<int>;
using float2 = Two<float>;
using uint4 = Four<unsigned>;
using int4 = Four<int>;
using float4 = Four<float>;
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulation {

constexpr unsigned MOST_THREADS = 1024, WARP = 32, STACK = 128 << 10;

// Threads that have to meet before any goes on. What a warp exchanges lies in one of two sheets in turn: nobody can be
// two meetings ahead.
struct Meeting {
    unsigned members, arrived, past;
    uint64_t sheets[2][WARP][4];

    void reset(unsigned count) { members = count, arrived = 0, past = 0; }
    void open_if_all_are_here() {
        if (arrived == members && members > 0) arrived = 0, past++;
    }
};

struct State {
    char* stacks;  // Touched as far as it is used.
    void* sleeping[MOST_THREADS];
    bool ended[MOST_THREADS];
    Meeting warps[MOST_THREADS / WARP];
    Meeting block;
    void* launcher;
    unsigned threads, current, turns_without_progress;
    dim3 grid, at;
    void (*body)(const void*);
    const void* args;
    struct Shared {
        void* at;
        size_t bytes;
    };
    std::vector<Shared> shared;
};
static State state;

// Saves the callee's registers and the stack, and goes on with the other one.
extern "C" void emulation_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
constexpr unsigned SAVED = 6, RETURN = 6;
#elif defined(__aarch64__)
asm(R"(
.text
emulation_switch:
    sub sp, sp, #160
    stp x29, x30, [sp]
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x29, x30, [sp]
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
constexpr unsigned SAVED = 20, RETURN = 1;
#else
#error "the emulation switches stacks on x86-64 and aarch64 only"
#endif

inline void go_to(unsigned thread) {
    unsigned from = state.current;
    state.current = thread;
    if (from != thread) emulation_switch(&state.sleeping[from], state.sleeping[thread]);
}

inline void give_way(unsigned first, unsigned count) {
    if (++state.turns_without_progress > 8 * MOST_THREADS) {
        fprintf(stderr, "emulation: the threads of block (%u, %u, %u) wait for each other for ever\n", state.at.x, state.at.y, state.at.z);
        abort();
    }
    for (unsigned step = 1; step <= count; step++) {
        unsigned thread = first + (state.current - first + step) % count;
        if (!state.ended[thread]) return go_to(thread);
    }
}

inline unsigned warp_start() { return state.current / WARP * WARP; }
inline unsigned warp_size() { return state.threads - warp_start() < WARP ? state.threads - warp_start() : WARP; }

inline void meet(Meeting& meeting, unsigned first, unsigned count) {
    unsigned before = meeting.past;
    meeting.arrived++;
    meeting.open_if_all_are_here();
    while (meeting.past == before) give_way(first, count);
    state.turns_without_progress = 0;
}

inline void meet_block() { meet(state.block, 0, state.threads); }
inline void meet_warp() { meet(state.warps[state.current / WARP], warp_start(), warp_size()); }

// Everybody's value, by lane; valid until the caller meets its warp the next time but one.
template <typename T>
inline const uint64_t (*exchange(const T& value))[4] {
    static_assert(sizeof(T) <= sizeof(uint64_t[4]), "a lane exchanges 32 bytes at most");
    Meeting& warp = state.warps[state.current / WARP];
    auto sheet = warp.sheets[warp.past % 2];
    memcpy(sheet[state.current % WARP], &value, sizeof(T));
    meet_warp();
    return sheet;
}

template <typename T>
inline T from_lane(const T& value, unsigned lane) {
    auto sheet = exchange(value);
    T other;
    memcpy(&other, sheet[lane % WARP], sizeof(T));
    return other;
}

inline void shared(void* at, size_t bytes) {
    for (const State::Shared& known : state.shared)
        if (known.at == at) return;
    state.shared.push_back({at, bytes});
    memset(at, 0xff, bytes);
}

// Where a fiber begins.
inline void run_thread() {
    state.body(state.args);
    unsigned me = state.current;
    state.ended[me] = true;
    Meeting& warp = state.warps[me / WARP];
    warp.members--, state.block.members--;
    warp.open_if_all_are_here();
    state.block.open_if_all_are_here();
    state.turns_without_progress = 0;
    for (unsigned step = 1; step < state.threads; step++) {
        unsigned thread = (me + step) % state.threads;
        if (!state.ended[thread]) go_to(thread);
    }
    emulation_switch(&state.sleeping[me], state.launcher);
    abort();
}

inline void run_block() {
    for (const State::Shared& known : state.shared) memset(known.at, 0xff, known.bytes);
    state.block.reset(state.threads);
    for (unsigned thread = 0; thread < state.threads; thread++) {
        char* top = state.stacks + (thread + 1) * (size_t)STACK;
        // Once the saved registers are taken from it, the stack is aligned as a called function finds it.
        void** sp = (void**)(((uintptr_t)top & ~(uintptr_t)63) - 64);
        sp -= SAVED;
        memset(sp, 0, (SAVED + 1) * sizeof(void*));
        sp[RETURN] = (void*)run_thread;
        state.sleeping[thread] = sp;
        state.ended[thread] = false;
        if (thread % WARP == 0) state.warps[thread / WARP].reset(state.threads - thread < WARP ? state.threads - thread : WARP);
    }
    state.current = 0;
    state.turns_without_progress = 0;
    emulation_switch(&state.launcher, state.sleeping[0]);
}

inline void launch(void (*body)(const void*), const void* args, const unsigned* grid, unsigned threads) {
    if (threads == 0 || threads > MOST_THREADS) {
        fprintf(stderr, "emulation: %u threads to a block\n", threads);
        abort();
    }
    if (!state.stacks) state.stacks = (char*)malloc(MOST_THREADS * (size_t)STACK);
    if (!state.stacks) abort();
    state.body = body, state.args = args, state.threads = threads;
    state.grid = {grid[0], grid[1], grid[2]};
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                state.at = {x, y, z};
                run_block();
            }
}

}  // namespace emulation

#define threadIdx (dim3{emulation::state.current, 0, 0})
#define blockIdx (emulation::state.at)
#define gridDim (emulation::state.grid)
#define blockDim (dim3{emulation::state.threads, 1, 1})

inline void __syncthreads() { emulation::meet_block(); }
inline void __syncwarp() { emulation::meet_warp(); }
inline void __threadfence() {}
template <typename T>
inline T __shfl_sync(unsigned, T x, int lane) {
    return emulation::from_lane(x, (unsigned)lane);
}
template <typename T>
inline T shuffle_xor(T x, int mask) {
    return emulation::from_lane(x, emulation::state.current % emulation::WARP ^ (unsigned)mask);
}

inline unsigned atomicInc(unsigned* at, unsigned last) {
    unsigned before = *at;
    *at = before >= last ? 0 : before + 1;
    return before;
}

template <typename T>
inline T __ldcg(const T* at) {
    return *at;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
template <typename T>
inline T min(T a, T b) {
    return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
    return a < b ? b : a;
}

inline int dot_unsigned(unsigned w, int x, int acc) {
    for (int i = 0; i < 4; i++) acc += (int)(uint8_t)(w >> 8 * i) * (int8_t)((unsigned)x >> 8 * i);
    return acc;
}
inline int dot_signed(int w, int x, int acc) {
    for (int i = 0; i < 4; i++) acc += (int)(int8_t)((unsigned)w >> 8 * i) * (int8_t)((unsigned)x >> 8 * i);
    return acc;
}

inline float half_to_float(unsigned short bits) {
    unsigned magnitude = bits & 0x7fffu, sign = (unsigned)(bits & 0x8000u) << 16;
    if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Exact, for subnormal numbers too: the exponent is off by 2^112.
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
}
inline unsigned short float_to_half(float x) {
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u;
    float magnitude = fabsf(x);
    if (magnitude != magnitude) return (unsigned short)(sign | 0x7e00u);
    if (magnitude >= 65520.0f) return (unsigned short)(sign | 0x7c00u);
    // The magic number's last bit is worth as much as the half's, so that the addition rounds as is asked.
    int exponent;
    frexpf(magnitude, &exponent);
    float unit = ldexpf(1.0f, (exponent - 11 < -24 ? -24 : exponent - 11));
    float rounded = nearbyintf(magnitude / unit) * unit;
    if (rounded < 0x1p-14f) return (unsigned short)(sign | (unsigned)(rounded * 0x1p24f));
    return (unsigned short)(sign | ((__float_as_uint(rounded) - (112u << 23)) >> 13));
}

inline uint4 load_once(const void* from) { return *(const uint4*)from; }
inline unsigned and_xor(unsigned x, unsigned mask, unsigned flip) { return (x & mask) ^ flip; }
inline void wait_for_predecessor() {}
inline void allow_successor() {}
template <int BYTES>
inline void copy_async(void* shared, const void* global) {
    if ((uintptr_t)shared % BYTES || (uintptr_t)global % BYTES) {
        fprintf(stderr, "emulation: a copy of %d bytes from %p to %p is not aligned\n", BYTES, global, shared);
        abort();
    }
    memcpy(shared, global, BYTES);
}
inline void copies_commit() {}
template <int LEFT>
inline void copies_wait() {}

template <bool UNSIGNED>
inline void multiply_tile(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const int (&c)[4]) {
    struct Registers {
        unsigned a[4], b[2];
    } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    auto sheet = emulation::exchange(mine);
    unsigned lane = emulation::state.current % emulation::WARP;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + (i / 2) * 8, column = lane % 4 * 2 + i % 2;
        int sum = c[i];
        for (unsigned k = 0; k < 8; k++) {
            Registers left, right;
            memcpy(&left, sheet[row % 8 * 4 + k % 4], sizeof(Registers));
            memcpy(&right, sheet[column * 4 + k % 4], sizeof(Registers));
            unsigned w = left.a[row / 8 + k / 4 * 2];
            int x = (int)right.b[k / 4];
            sum = UNSIGNED ? dot_unsigned(w, x, sum) : dot_signed((int)w, x, sum);
        }
        d[i] = sum;
    }
}

// The entry point, called with the kernel's one argument.
#define KERNEL(name, Args, threads, blocks)                                                 \
    static void name(const Args& args);                                                     \
    static void name##_thread(const void* args) { name(*(const Args*)args); }               \
    extern "C" void emulated_launch(const void* args, const unsigned* grid, unsigned count) { \
        emulation::launch(name##_thread, args, grid, count);                                \
    }                                                                                       \
    static void name(const Args& args)
