// The two products of attention for up to 64 keys: rows of scores, and rows of mixed values.
//
//   score:  scores[r, j] = Σ_pairs q[r, pair] · keys[pair, j]            mix:  out[r, i] += Σ_j w[r, j] · values[j, i]
//
// Blocked by rows so that all sums live in registers: 6 rows × 4 vectors. A row's order of sums is the same in every
// block: pair after pair.
#pragma once

#include <algorithm>

#include "vector.h"

namespace headway {

// Up to 64 keys in four parts of 16, each where its block lies.
struct KeyTile {
    const uint32_t* key[4];    // [pairs][key_stride], 16 of them read
    const uint32_t* value[4];  // [8][width]
    const uint32_t* next_key[4];    // of the tile after it, fetched into the cache meanwhile; or null
    const uint32_t* next_value[4];
    int64_t key_stride;
    int keys;                  // from the first on; what lies behind is never read into a sum
    int pairs;
    int width;
};

constexpr int kBlockRows = 6;

// Calls work(first row, number of rows as a constant) for blocks of nearly equal size.
template <class Work>
inline void for_row_blocks(int rows, Work&& work) {
    const int blocks = (rows + kBlockRows - 1) / kBlockRows;
    for (int block = 0, row = 0; block < blocks; ++block) {
        const int count = (rows - row + blocks - block - 1) / (blocks - block);
        switch (count) {
            case 1: work(row, std::integral_constant<int, 1>()); break;
            case 2: work(row, std::integral_constant<int, 2>()); break;
            case 3: work(row, std::integral_constant<int, 3>()); break;
            case 4: work(row, std::integral_constant<int, 4>()); break;
            case 5: work(row, std::integral_constant<int, 5>()); break;
            default: work(row, std::integral_constant<int, 6>()); break;
        }
        row += count;
    }
}

// Decode reads each key once, straight from memory and in pieces of 2 KB: too short for the hardware to guess what
// comes. One line per vector of products keeps enough of them on the way.
inline void fetch(const uint32_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0); }

template <int Rows, bool Fetches>
inline void score_block(const KeyTile& tile, const uint32_t* q, float* scores) {
    const __mmask16 inside[4] = {lanes_below(tile.keys), lanes_below(tile.keys - 16), lanes_below(tile.keys - 32),
                                 lanes_below(tile.keys - 48)};
    __m512 sums[Rows][4];
    for (int row = 0; row < Rows; ++row) {
        for (int part = 0; part < 4; ++part) sums[row][part] = _mm512_setzero_ps();
    }
    for (int pair = 0; pair < tile.pairs; ++pair) {
        __m512i keys[4];
        for (int part = 0; part < 4; ++part) {
            keys[part] = _mm512_maskz_loadu_epi32(inside[part], tile.key[part] + pair * tile.key_stride);
            if (Fetches) fetch(tile.next_key[part] + pair * tile.key_stride);
        }
        for (int row = 0; row < Rows; ++row) {
            const __m512i query = _mm512_set1_epi32(static_cast<int>(q[row * tile.pairs + pair]));
            for (int part = 0; part < 4; ++part) sums[row][part] = dot_pairs(sums[row][part], query, keys[part]);
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int part = 0; part < 4; ++part) _mm512_store_ps(scores + row * 64 + part * kLanes, sums[row][part]);
    }
}

inline void score(const KeyTile& tile, const uint32_t* q, float* scores, int rows) {
    for_row_blocks(rows, [&](int row, auto count) {
        if (row == 0 && tile.next_key[0] != nullptr) {
            score_block<count.value, true>(tile, q, scores);
        } else {
            score_block<count.value, false>(tile, q + int64_t(row) * tile.pairs, scores + row * 64);
        }
    });
}

template <int Rows, int Vectors, bool Fetches>
inline void mix_block(const KeyTile& tile, const uint32_t* weights, float* out, int column) {
    __m512 sums[Rows][Vectors];
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) sums[row][v] = _mm512_load_ps(out + row * tile.width + column + v * kLanes);
    }
    const int pairs = (tile.keys + 1) / 2;
    for (int pair = 0; pair < pairs; ++pair) {
        const uint32_t* from = tile.value[pair / 8] + pair % 8 * tile.width + column;
        // Behind the last key may lie anything, even what is not a number.
        const __m512i kept = _mm512_set1_epi32(2 * pair + 1 < tile.keys ? -1 : 0xFFFF);
        __m512i values[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            values[v] = _mm512_and_si512(_mm512_loadu_si512(from + v * kLanes), kept);
            if (Fetches) fetch(tile.next_value[pair / 8] + pair % 8 * tile.width + column + v * kLanes);
        }
        for (int row = 0; row < Rows; ++row) {
            const __m512i weight = _mm512_set1_epi32(static_cast<int>(weights[row * 32 + pair]));
            for (int v = 0; v < Vectors; ++v) sums[row][v] = dot_pairs(sums[row][v], weight, values[v]);
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) _mm512_store_ps(out + row * tile.width + column + v * kLanes, sums[row][v]);
    }
}

template <int Rows, bool Fetches>
inline void mix_rows(const KeyTile& tile, const uint32_t* weights, float* out) {
    int column = 0;
    for (; column + 64 <= tile.width; column += 64) mix_block<Rows, 4, Fetches>(tile, weights, out, column);
    for (; column + 32 <= tile.width; column += 32) mix_block<Rows, 2, Fetches>(tile, weights, out, column);
    for (; column < tile.width; column += 16) mix_block<Rows, 1, Fetches>(tile, weights, out, column);
}

inline void mix(const KeyTile& tile, const uint32_t* weights, float* out, int rows) {
    for_row_blocks(rows, [&](int row, auto count) {
        if (row == 0 && tile.next_value[0] != nullptr) {
            mix_rows<count.value, true>(tile, weights, out);
        } else {
            mix_rows<count.value, false>(tile, weights + row * 32, out + int64_t(row) * tile.width);
        }
    });
}

}  // namespace headway
