// Memory of the emulated device: every allocation ends where a page begins that nobody may touch, so that an access
// past its end stops the program. Fresh memory is filled with NaNs.
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// An allocation's end is aligned to 16 bytes, the widest access.
static size_t used(size_t bytes) { return (bytes + 15) / 16 * 16; }
static size_t pages(size_t bytes, size_t page) { return (used(bytes) + page - 1) / page * page; }

extern "C" void* emulated_alloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = pages(bytes, page);
    void* base = mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    mprotect((char*)base + size, page, PROT_NONE);
    void* at = (char*)base + size - used(bytes);
    // Large ones keep the system's zeros: touching every page would cost more than the tests.
    if (bytes <= (1u << 20)) memset(at, 0xff, bytes);
    return at;
}

extern "C" void emulated_free(void* at, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = pages(bytes, page);
    munmap((char*)at + used(bytes) - size, size + page);
}
