// Keys and values in 8 bits, with one scale per token and kv head: k ≈ dk · (u8 − 128), v ≈ dv · s8.
//
//   score:  dk[j] · dq · (256 · Σ u8 · high + Σ u8 · low)      q / dq in 16 bits = 256 · high + low, signed bytes
//   mix:    dp · (256 · Σ high · s8 + Σ low · s8)              w[j] · dv[j] / dp in 16 bits, dp for 64 keys of a row
//
// So the cache's own rounding is all that is lost: queries and weights keep 15 bits and more. Sums of bytes are exact
// (vpdpbusd), whatever their order; 3 rows × 4 vectors × 2 halves live in registers.
#pragma once

#include "attention_products.h"
#include "attention_scratch.h"

namespace headway {

struct Int8Keys {
    static constexpr int kKeysOfWord = 4;
    static constexpr bool kHasScales = true;
    static constexpr int kBlockRows = 3;

    static int64_t tile_bytes(const AttentionShape& shape) { return int64_t(shape.block_size) * (shape.head_dim + 4); }

    static void load_query(const Scratch& own, int row, const uint16_t* q, int head_dim, int width) {
        auto* high = reinterpret_cast<__m128i*>(own.q + int64_t(row) * width / 2);
        auto* low = high + width / kLanes;
        auto at = [q](int i) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i))); };
        __m512 largest = _mm512_setzero_ps();
        for (int i = 0; i < head_dim; i += kLanes) largest = _mm512_max_ps(largest, _mm512_abs_ps(at(i)));
        const float most = _mm512_reduce_max_ps(largest);
        const bool is_something = most > 1e-30f;
        const __m512 inverse = _mm512_set1_ps(is_something ? 32512.0f / most : 0.0f);
        own.q_scale[row] = is_something ? most / 32512.0f : 0.0f;
        __m512i highs = _mm512_setzero_si512(), lows = highs;
        for (int i = 0; i < head_dim; i += kLanes) {
            const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(at(i), inverse));
            const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
            const __m512i lower = _mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 8));
            _mm_store_si128(high + i / kLanes, _mm512_cvtepi32_epi8(upper));
            _mm_store_si128(low + i / kLanes, _mm512_cvtepi32_epi8(lower));
            highs = _mm512_add_epi32(highs, upper);
            lows = _mm512_add_epi32(lows, lower);
        }
        own.q_offsets[2 * row] = -128 * _mm512_reduce_add_epi32(highs);
        own.q_offsets[2 * row + 1] = -128 * _mm512_reduce_add_epi32(lows);
    }

    static void score(const KeyTile& tile, const Scratch& own, int rows) {
        for_row_blocks<kBlockRows>(rows, [&](int row, auto count) {
            if (row == 0 && tile.next_key[0] != nullptr) score_block<count.value, true>(tile, own, row);
            else score_block<count.value, false>(tile, own, row);
        });
    }

    static void mix(const KeyTile& tile, const Scratch& own, int rows) {
        for_row_blocks<kBlockRows>(rows, [&](int row, auto count) {
            for_column_blocks(tile.width, [&](int column, auto vectors) {
                if (row == 0 && tile.next_value[0] != nullptr) {
                    mix_block<count.value, vectors.value, true>(tile, own, row, column);
                } else {
                    mix_block<count.value, vectors.value, false>(tile, own, row, column);
                }
            });
        });
    }

    static __m512 scaled(const KeyTile& tile, const Scratch& own, int row, int part, float scale) {
        const __m512 raw = _mm512_load_ps(own.scores + row * kKeyTile + part * kLanes);
        const __m512 by = _mm512_set1_ps(scale * own.q_scale[row]);
        return _mm512_mul_ps(_mm512_mul_ps(raw, by), _mm512_loadu_ps(tile.key_scale[part]));
    }

    static __m512 keep_weights(const KeyTile& tile, const Scratch& own, int row, const __m512 (&weights)[4], __m512 sums) {
        __m512 mixed[4], largest = _mm512_setzero_ps();
        HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) {
            sums = _mm512_add_ps(sums, weights[part]);
            // Where nothing is seen the scale may be anything.
            const __mmask16 seen = _mm512_cmp_ps_mask(weights[part], _mm512_setzero_ps(), _CMP_GT_OQ);
            mixed[part] = _mm512_maskz_mul_ps(seen, weights[part], _mm512_loadu_ps(tile.value_scale[part]));
            largest = _mm512_max_ps(largest, mixed[part]);
        }
        const float most = _mm512_reduce_max_ps(largest);
        const bool is_something = most > 1e-30f;
        const __m512 inverse = _mm512_set1_ps(is_something ? 65280.0f / most : 0.0f);
        own.weight_scale[row] = is_something ? most / 65280.0f : 0.0f;
        auto* high = reinterpret_cast<__m128i*>(own.weights + row * kKeyTile / 2);
        HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) {
            const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(mixed[part], inverse));
            _mm_store_si128(high + part, _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
            _mm_store_si128(high + 4 + part, _mm512_cvtepi32_epi8(whole));
        }
        return sums;
    }

    static void keep_nothing(const Scratch& own, int row) {
        std::memset(own.weights + row * kKeyTile / 2, 0, 128);
        own.weight_scale[row] = 0.0f;
    }

  private:
    static __m512 joined(__m512i high, __m512i low) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(low));
    }

    template <int Rows, bool Fetches>
    static HEADWAY_APART void score_block(const KeyTile& tile, const Scratch& own, int first) {
        const int fours = tile.width / 4;
        const uint32_t* q = own.q + int64_t(first) * tile.width / 2;
        __m512i high[Rows][4], low[Rows][4];
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) {
                high[row][part] = _mm512_set1_epi32(own.q_offsets[2 * (first + row)]);
                low[row][part] = _mm512_set1_epi32(own.q_offsets[2 * (first + row) + 1]);
            }
        }
        for (int four = 0; four < fours; ++four) {
            __m512i keys[4];
            HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) {
                keys[part] = _mm512_loadu_si512(tile.key[part] + four * tile.key_stride);
                if (Fetches) fetch(tile.next_key[part] + four * tile.key_stride);
            }
            HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
                const __m512i upper = _mm512_set1_epi32(static_cast<int>(q[row * 2 * fours + four]));
                const __m512i lower = _mm512_set1_epi32(static_cast<int>(q[row * 2 * fours + fours + four]));
                HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) {
                    dot_fours(high[row][part], keys[part], upper);
                    dot_fours(low[row][part], keys[part], lower);
                }
            }
        }
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            HEADWAY_UNROLLED for (int part = 0; part < 4; ++part) {
                float* to = own.scores + (first + row) * kKeyTile + part * kLanes;
                _mm512_store_ps(to, joined(high[row][part], low[row][part]));
            }
        }
    }

    template <int Rows, int Vectors, bool Fetches>
    static HEADWAY_APART void mix_block(const KeyTile& tile, const Scratch& own, int first, int column) {
        const uint32_t* weights = own.weights + first * kKeyTile / 2;
        __m512i high[Rows][Vectors], low[Rows][Vectors];
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) high[row][v] = low[row][v] = _mm512_setzero_si512();
        }
        const int fours = (tile.keys + 3) / 4;
        for (int four = 0; four < fours; ++four) {
            const int64_t at = int64_t(four % 4) * tile.width + column;
            __m512i values[Vectors];
            HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) {
                values[v] = _mm512_loadu_si512(tile.value[four / 4] + at + v * kLanes);
                if (Fetches) fetch(tile.next_value[four / 4] + at + v * kLanes);
            }
            HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
                const __m512i upper = _mm512_set1_epi32(static_cast<int>(weights[row * 32 + four]));
                const __m512i lower = _mm512_set1_epi32(static_cast<int>(weights[row * 32 + 16 + four]));
                HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) {
                    dot_fours(high[row][v], upper, values[v]);
                    dot_fours(low[row][v], lower, values[v]);
                }
            }
        }
        HEADWAY_UNROLLED for (int row = 0; row < Rows; ++row) {
            const __m512 scale = _mm512_set1_ps(own.weight_scale[first + row]);
            HEADWAY_UNROLLED for (int v = 0; v < Vectors; ++v) {
                float* out = own.part + int64_t(first + row) * tile.width + column + v * kLanes;
                _mm512_store_ps(out, _mm512_fmadd_ps(joined(high[row][v], low[row][v]), scale, _mm512_load_ps(out)));
            }
        }
    }
};

}  // namespace headway
