// What both formats of keys and values share: where 64 of them lie, and how rows are dealt in blocks.
//
// Decode reads each key once, straight from memory and in pieces of 1 or 2 KB: too short for the hardware to guess what
// comes. So for each line that is read the one of the tile after it is asked for, into the L2 cache (a core waits for
// at most some two dozen lines on their way to L1, half of what memory can deliver).
#pragma once

#include <algorithm>
#include <type_traits>

#include "vector.h"

namespace headway {

// Before a loop over registers.
#define HEADWAY_UNROLLED _Pragma("GCC unroll 8")

// A function that has the registers for itself: inlined, GCC 12 keeps sums in memory.
#define HEADWAY_APART __attribute__((noinline))

// Up to 64 keys in four parts of 16, each where its block lies.
struct KeyTile {
    const uint32_t* key[4];         // [words][key_stride], 16 of them read; a word is 2 bf16 or 4 int8 of one key
    const uint32_t* value[4];       // [16 keys / keys of a word][width]
    const float* key_scale[4];      // [16] of int8
    const float* value_scale[4];
    const uint32_t* next_key[4];    // of the tile after it, fetched meanwhile; or null
    const uint32_t* next_value[4];
    int64_t key_stride;
    int keys;                       // from the first on; what lies behind is never read into a sum
    int width;
};

inline void fetch(const void* line) { _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1); }

// Calls work(first row, number of rows as a constant) for blocks of nearly equal size, Most rows or fewer.
template <int Most, class Work>
inline void for_row_blocks(int rows, Work&& work) {
    const int blocks = (rows + Most - 1) / Most;
    for (int block = 0, row = 0; block < blocks; ++block) {
        const int count = (rows - row + blocks - block - 1) / (blocks - block);
        switch (count) {
            case 1: work(row, std::integral_constant<int, 1>()); break;
            case 2: work(row, std::integral_constant<int, 2>()); break;
            case 3: work(row, std::integral_constant<int, 3>()); break;
            case 4: work(row, std::integral_constant<int, std::min(4, Most)>()); break;
            case 5: work(row, std::integral_constant<int, std::min(5, Most)>()); break;
            default: work(row, std::integral_constant<int, std::min(6, Most)>()); break;
        }
        row += count;
    }
}

// Calls work(first column, vectors as a constant) for blocks of up to 64 columns.
template <class Work>
inline void for_column_blocks(int width, Work&& work) {
    int column = 0;
    for (; column + 64 <= width; column += 64) work(column, std::integral_constant<int, 4>());
    for (; column + 32 <= width; column += 32) work(column, std::integral_constant<int, 2>());
    for (; column < width; column += 16) work(column, std::integral_constant<int, 1>());
}

}  // namespace headway
