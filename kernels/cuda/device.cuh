// What kernels ask of the machine, each thing under one name: instructions that C++ has no word for, loads with hints, copies that
// go on by themselves, tensor cores, the wait for the kernel before. Under EMULATE the host's compiler gets the same names.
#pragma once

#ifdef EMULATE
#include "emulate.h"
#else

#define SHARED(type, name, extent) __shared__ type name extent
#define UNROLL _Pragma("unroll")
#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(count) PRAGMA(unroll count)
#define ALIGNED(bytes) __align__(bytes)
// The entry point, named as its file: at most so many threads, and at least so many blocks on a multiprocessor.
#define KERNEL(name, Args, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args args)

// acc + the products of four unsigned bytes with four signed ones.
__device__ inline int dot_unsigned(unsigned w, int x, int acc) {
    int sum;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(w), "r"(x), "r"(acc));
    return sum;
}

__device__ inline int dot_signed(int w, int x, int acc) { return __dp4a(w, x, acc); }

// (x & mask) ^ flip, which the compiler does not always see to be one instruction.
__device__ inline unsigned and_xor(unsigned x, unsigned mask, unsigned flip) {
    unsigned y;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(mask), "r"(flip));
    return y;
}

__device__ inline float half_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ inline unsigned short float_to_half(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Weights are read once: they pass by the first cache, and their neighbours are fetched with them.
__device__ inline uint4 load_once(const void* from) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from));
    return v;
}

// The kernel before has ended and what it wrote is there. Nothing where launches do not overlap.
__device__ inline void wait_for_predecessor() {
#if PDL
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may be brought in: it waits for this one by itself.
__device__ inline void allow_successor() {
#if PDL
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// 16, 8 or 4 bytes from global to shared memory, while the thread goes on.
template <int BYTES>
__device__ inline void copy_async(void* shared, const void* global) {
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(BYTES) : "memory");
}

__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the latest LEFT groups have arrived.
template <int LEFT>
__device__ inline void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// c + A B for 16 rows of 32 bytes (unsigned, or signed) and 8 columns of 32 signed bytes, as PTX lays out m16n8k32.
template <bool UNSIGNED>
__device__ inline void multiply_tile(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const int (&c)[4]) {
    if (UNSIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

__device__ inline float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
__device__ inline int shuffle_xor(int x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
__device__ inline unsigned shuffle_xor(unsigned x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

#endif

__device__ inline float bits_to_float(unsigned bits) { return __uint_as_float(bits); }
