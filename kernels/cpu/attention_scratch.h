// A member's memory for one attention tile.
#pragma once

#include "attention.h"
#include "vector.h"

namespace headway {

inline int padded(int width) { return (width + kLanes - 1) / kLanes * kLanes; }

// Everything that outlives one tile of 64 keys.
struct Scratch {
    uint32_t* q;        // [rows][width / 2]: bf16 pairs, or int8 fours of high and of low halves
    float* scores;      // [rows][64]
    uint32_t* weights;  // [rows][32]: bf16 pairs, or fours of high and of low bytes
    float* part;        // [rows][width] of this split, not yet divided
    float* total;       // [rows][width] of the splits before
    float* part_max;    // [rows]
    float* total_max;
    float* part_sums;   // [rows][16] lanes
    float* total_sums;
    uint32_t* keys;     // [width / 2][64] pairs, where blocks do not fit the tile
    uint32_t* values;   // [32][width]
    float* q_scale;       // [rows] of 8-bit products, as are the following
    int32_t* q_offsets;   // [rows][2] high and low
    float* weight_scale;  // [rows]

    Scratch(uint8_t* memory, int rows, int width) {
        auto take = [&memory](int64_t count) {
            uint8_t* taken = memory;
            memory += (count * 4 + 63) / 64 * 64;
            return taken;
        };
        q = reinterpret_cast<uint32_t*>(take(int64_t(rows) * width / 2));
        scores = reinterpret_cast<float*>(take(int64_t(rows) * kKeyTile));
        weights = reinterpret_cast<uint32_t*>(take(int64_t(rows) * kKeyTile / 2));
        part = reinterpret_cast<float*>(take(int64_t(rows) * width));
        total = reinterpret_cast<float*>(take(int64_t(rows) * width));
        part_max = reinterpret_cast<float*>(take(rows));
        total_max = reinterpret_cast<float*>(take(rows));
        part_sums = reinterpret_cast<float*>(take(int64_t(rows) * kLanes));
        total_sums = reinterpret_cast<float*>(take(int64_t(rows) * kLanes));
        keys = reinterpret_cast<uint32_t*>(take(int64_t(width) / 2 * kKeyTile));
        values = reinterpret_cast<uint32_t*>(take(int64_t(width) * kKeyTile / 2));
        q_scale = reinterpret_cast<float*>(take(rows));
        q_offsets = reinterpret_cast<int32_t*>(take(int64_t(rows) * 2));
        weight_scale = reinterpret_cast<float*>(take(rows));
        end = memory;
    }
    uint8_t* end;
};

}  // namespace headway
