// The memory that a step works in.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "types.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

// The memory of a step: one block that only grows, in parts that begin at pages, one after the other. Parts at places
// of the allocator's choice fall by chance on places that push each other out of the first cache: steps of twenty rows
// took up to 12 % longer in one run of a program than in the next.
class Memory {
  public:
    ~Memory() { free(data); }

    // Calls `parts` twice, first to learn the size: `part(pointer, count)` says where a part of `count` values is.
    // Raises bad_alloc.
    template <typename Parts>
    void lay_out(Parts parts) {
        for (int pass = 0; pass < 2; ++pass) {
            int64_t end = 0;
            parts([&](auto*& pointer, int64_t count) {
                const int64_t bytes = count * (int64_t)sizeof(*pointer) + SPARE;
                if (pass == 1) {
                    pointer = (std::remove_reference_t<decltype(pointer)>)(data + end);
                    allow(data + end, bytes);
                }
                end += padded(bytes, PAGE);
            });
            if (pass == 0) grow(end);
        }
    }

  private:
    static constexpr int64_t PAGE = 4096;
    static constexpr int64_t SPARE = 64;  // vectors may be read beyond the last value

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
        forbid(data, size);
    }

    // So that the sanitizer sees what goes beyond a part.
#if defined(__SANITIZE_ADDRESS__)
    static void allow(char* from, int64_t bytes) { ASAN_UNPOISON_MEMORY_REGION(from, bytes); }
    static void forbid(char* from, int64_t bytes) { ASAN_POISON_MEMORY_REGION(from, bytes); }
#else
    static void allow(char*, int64_t) {}
    static void forbid(char*, int64_t) {}
#endif
};
