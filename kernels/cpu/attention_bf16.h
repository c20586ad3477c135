// Keys and values in bfloat16: the two products of attention for up to 64 keys.
//
//   score:  scores[r, j] = Σ_pairs q[r, pair] · keys[pair, j]            mix:  out[r, i] += Σ_j w[r, j] · values[j, i]
//
// Blocked by rows so that all sums live in registers: 6 rows × 4 vectors. A row's order of sums is the same in every
// block: pair after pair.
#pragma once

#include "attention_products.h"
#include "attention_scratch.h"

namespace headway {

struct Bf16Keys {
    static constexpr int kKeysOfWord = 2;  // of a word of values; also the parts of a key in a word of keys
    static constexpr bool kHasScales = false;
    static constexpr int kBlockRows = 6;

    static int64_t tile_bytes(const AttentionShape& shape) { return int64_t(shape.block_size) * shape.head_dim * 2; }

    static void load_query(const Scratch& own, int row, const uint16_t* q, int head_dim, int width) {
        uint32_t* mine = own.q + int64_t(row) * width / 2;
        std::memset(mine, 0, width * 2);
        std::memcpy(mine, q, head_dim * 2);
    }

    static void score(const KeyTile& tile, const Scratch& own, int rows) {
        for_row_blocks<kBlockRows>(rows, [&](int row, auto count) {
            const uint32_t* q = own.q + int64_t(row) * tile.width / 2;
            float* scores = own.scores + row * kKeyTile;
            if (row == 0 && tile.next_key[0] != nullptr) score_block<count.value, true>(tile, q, scores);
            else score_block<count.value, false>(tile, q, scores);
        });
    }

    static void mix(const KeyTile& tile, const Scratch& own, int rows) {
        for_row_blocks<kBlockRows>(rows, [&](int row, auto count) {
            const uint32_t* weights = own.weights + row * kKeyTile / 2;
            float* out = own.part + int64_t(row) * tile.width;
            for_column_blocks(tile.width, [&](int column, auto vectors) {
                if (row == 0 && tile.next_value[0] != nullptr) {
                    mix_block<count.value, vectors.value, true>(tile, weights, out, column);
                } else {
                    mix_block<count.value, vectors.value, false>(tile, weights, out, column);
                }
            });
        });
    }

    // 16 of a row's scores, to be multiplied by the softmax scale.
    static __m512 scaled(const KeyTile&, const Scratch& own, int row, int part, float scale) {
        return _mm512_mul_ps(_mm512_load_ps(own.scores + row * kKeyTile + part * kLanes), _mm512_set1_ps(scale));
    }

    // Weights as they enter the product, rounded; returns sums plus what was kept, lane by lane.
    static __m512 keep_weights(const KeyTile&, const Scratch& own, int row, const __m512 (&weights)[4], __m512 sums) {
        auto* kept = reinterpret_cast<__m512i*>(own.weights + row * kKeyTile / 2);
        for (int half = 0; half < 2; ++half) {
            const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(weights[2 * half + 1], weights[2 * half]);
            sums = _mm512_add_ps(sums, from_bf16(_mm512_castsi512_si256(rounded)));
            sums = _mm512_add_ps(sums, from_bf16(_mm512_extracti64x4_epi64(rounded, 1)));
            _mm512_store_si512(kept + half, rounded);
        }
        return sums;
    }

    static void keep_nothing(const Scratch& own, int row) { std::memset(own.weights + row * kKeyTile / 2, 0, 128); }

  private:
    template <int Rows, bool Fetches>
    static HEADWAY_APART void score_block(const KeyTile& tile, const uint32_t* q, float* scores) {
        const int pairs = tile.width / 2;
        __m512 sums[Rows][4];
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) sums[row][part] = _mm512_setzero_ps();
        }
        for (int pair = 0; pair < pairs; ++pair) {
            __m512i keys[4];
            HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) {
                keys[part] = _mm512_loadu_si512(tile.key[part] + pair * tile.key_stride);
                if (Fetches) fetch(tile.next_key[part] + pair * tile.key_stride);
            }
            HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
                const __m512i query = _mm512_set1_epi32(static_cast<int>(q[row * pairs + pair]));
                HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) dot_twos(sums[row][part], keys[part], query);
            }
        }
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            float* to = scores + row * kKeyTile;
            HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) _mm512_store_ps(to + part * kLanes, sums[row][part]);
        }
    }

    template <int Rows, int Vectors, bool Fetches>
    static inline void add_pair(__m512 (&sums)[Rows][Vectors], const KeyTile& tile, const uint32_t* weights, int column,
                                int pair, __m512i kept) {
        const int64_t at = int64_t(pair % 8) * tile.width + column;
        __m512i values[Vectors];
        HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) {
            values[v] = _mm512_and_si512(_mm512_loadu_si512(tile.value[pair / 8] + at + v * kLanes), kept);
            if (Fetches) fetch(tile.next_value[pair / 8] + at + v * kLanes);
        }
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            const __m512i weight = _mm512_set1_epi32(static_cast<int>(weights[row * 32 + pair]));
            HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) dot_twos(sums[row][v], values[v], weight);
        }
    }

    template <int Rows, int Vectors, bool Fetches>
    static HEADWAY_APART void mix_block(const KeyTile& tile, const uint32_t* weights, float* out, int column) {
        __m512 sums[Rows][Vectors];
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            const float* from = out + row * tile.width + column;
            HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) sums[row][v] = _mm512_load_ps(from + v * kLanes);
        }
        const __m512i all = _mm512_set1_epi32(-1);
        for (int pair = 0; pair < tile.keys / 2; ++pair) {
            add_pair<Rows, Vectors, Fetches>(sums, tile, weights, column, pair, all);
        }
        // Behind the last key may lie anything, even what is not a number.
        if (tile.keys % 2 != 0) {
            add_pair<Rows, Vectors, Fetches>(sums, tile, weights, column, tile.keys / 2, _mm512_set1_epi32(0xFFFF));
        }
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            float* to = out + row * tile.width + column;
            HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) _mm512_store_ps(to + v * kLanes, sums[row][v]);
        }
    }
};

}  // namespace headway
