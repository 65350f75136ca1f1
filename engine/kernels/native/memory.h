// The memory in which a step works.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "types.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

// The memory of a step: one block that only grows. Its parts follow each other, and each begins at a page. If the
// allocator places the parts, some of them can evict each other from the L1 cache by chance: then steps of twenty rows
// took up to 12 % longer in one run of a program than in the next.
class Memory {
  public:
    ~Memory() { free(data); }

    // Calls `parts` twice, the first time to learn the size. `part(pointer, count)` sets the address of a part of
    // `count` values. Throws bad_alloc.
    template <typename Parts>
    void allocate(Parts parts) {
        for (int pass = 0; pass < 2; ++pass) {
            int64_t end = 0;
            parts([&](auto*& pointer, int64_t count) {
                const int64_t bytes = count * (int64_t)sizeof(*pointer) + SPARE;
                if (pass == 1) {
                    pointer = (std::remove_reference_t<decltype(pointer)>)(data + end);
                    unpoison(data + end, bytes);
                }
                end += padded(bytes, PAGE);
            });
            if (pass == 0) grow(end);
        }
    }

  private:
    static constexpr int64_t PAGE = 4096;
    static constexpr int64_t SPARE = 64;  // vectors may be read beyond the last value of a part

    char* data = nullptr;
    int64_t size = 0;

    void grow(int64_t wanted) {
        if (wanted > size) {
            free(data);
            size = 0;
            data = (char*)aligned_alloc(PAGE, (size_t)wanted);
            if (data == nullptr) throw std::bad_alloc();
            size = wanted;
            memset(data, 0, (size_t)size);
        }
        poison(data, size);
    }

    // The sanitizer then reports accesses beyond a part.
#if defined(__SANITIZE_ADDRESS__)
    static void unpoison(char* from, int64_t bytes) { ASAN_UNPOISON_MEMORY_REGION(from, bytes); }
    static void poison(char* from, int64_t bytes) { ASAN_POISON_MEMORY_REGION(from, bytes); }
#else
    static void unpoison(char*, int64_t) {}
    static void poison(char*, int64_t) {}
#endif
};
