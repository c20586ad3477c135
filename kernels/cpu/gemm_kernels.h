// Micro-kernels: R activation rows × one panel (two vectors of 16 outputs), all of K, in registers.
//
//   INT8       y = d_r · d_n · (Σ u8 · s8 + offset_r)                         Σ exact in int32, up to K = 65,536
//   INT8_MANY  y = d_n · Σ_g d_r,g · (Σ u8 · s8 + offset_r,g)                  one multiplication for each group
//   Q8_0, Q4_0 y = Σ_g d_n,g · (d_r,g · (Σ u8 · s8 + offset_r,g))             g: groups of 32 k, in order
//   Q4_1       y = Σ_g d_n,g · (d_r,g · Σ u8 · s8) + m_n,g · (d_r,g · Σ s8)
//   BF16       y = Σ bf16 · bf16 in float32, pairs of k in order
//   F32        y = Σ f32 · f32, k in order
//
// R is a compile-time number so that all sums stay in registers: 2 · 12 of 32 for INT8, BF16 and F32, 2 · 2 · 6 for the
// others. Each pass also asks for `ahead`, the panel that follows, one line for each line it reads: with one row a
// panel is over before the hardware's prefetcher has its stride.
#pragma once

#include "gemm_layout.h"

namespace headway {

template <int R>
struct Rows {
    const uint8_t* row[R];
};

template <int R>
using Sums = __m512[R][2];

#define HEADWAY_EACH_ROW _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r)

inline __m512i vector_at(const uint8_t* bytes) { return _mm512_load_si512(bytes); }

template <class T>
inline T value_at(const uint8_t* bytes) {
    T value;
    __builtin_memcpy(&value, bytes, sizeof value);
    return value;
}

inline __m512i broadcast_four(const uint8_t* bytes) { return _mm512_set1_epi32(value_at<int32_t>(bytes)); }
inline __m512 broadcast_float(const uint8_t* bytes) { return _mm512_set1_ps(value_at<float>(bytes)); }

// What comes next, fetched while this block computes, some lines for each 32 k: the next panel from memory into the
// L2 cache (a core waits for at most some two dozen lines on their way to L1, too few for memory's latency).
struct Ahead {
    const uint8_t* at;
    int lines;
    void ask() {
        // Of few lines always as many as are asked for at most: asking again costs less than a loop of unknown length.
        if (lines <= kFewLines) {
            _Pragma("GCC unroll 4") for (int line = 0; line < kFewLines; ++line)
                _mm_prefetch(at + line * kVectorBytes, _MM_HINT_T1);
        } else {
            for (int line = 0; line < lines; ++line) _mm_prefetch(at + line * kVectorBytes, _MM_HINT_T1);
        }
        at += lines * kVectorBytes;
    }

  private:
    static constexpr int kFewLines = 4;
};

// sums += 4 k of both vectors, for every row.
template <int R>
inline void add_four(__m512i (&sums)[R][2], __m512i first, __m512i second, const Rows<R>& x, int k) {
    HEADWAY_EACH_ROW {
        const __m512i four = broadcast_four(x.row[r] + k);
        dot_fours(sums[r][0], first, four);
        dot_fours(sums[r][1], second, four);
    }
}

template <int R>
struct Bf16Kernel {
    static void run(const uint8_t* panel, Ahead ahead, const Rows<R>& x, int groups, Sums<R>& out) {
        Sums<R> y;
        HEADWAY_EACH_ROW y[r][0] = y[r][1] = _mm512_setzero_ps();
        for (int pair = 0; pair < groups * 16; pair += 2, panel += 4 * kVectorBytes) {
            if (pair % 16 == 0) ahead.ask();
            _Pragma("GCC unroll 2") for (int i = 0; i < 2; ++i) {
                const __m512i first = vector_at(panel + i * 128), second = vector_at(panel + i * 128 + 64);
                HEADWAY_EACH_ROW {
                    const __m512i two = broadcast_four(x.row[r] + 4 * (pair + i));
                    dot_twos(y[r][0], first, two);
                    dot_twos(y[r][1], second, two);
                }
            }
        }
        HEADWAY_EACH_ROW out[r][0] = y[r][0], out[r][1] = y[r][1];
    }
};

template <int R>
struct F32Kernel {
    static void run(const uint8_t* panel, Ahead ahead, const Rows<R>& x, int groups, Sums<R>& out) {
        Sums<R> y;
        HEADWAY_EACH_ROW y[r][0] = y[r][1] = _mm512_setzero_ps();
        for (int k = 0; k < groups * kGroup; ++k, panel += 2 * kVectorBytes) {
            if (k % kGroup == 0) ahead.ask();
            const __m512 first = _mm512_load_ps(panel), second = _mm512_load_ps(panel + kVectorBytes);
            HEADWAY_EACH_ROW {
                const __m512 one = broadcast_float(x.row[r] + 4 * k);
                y[r][0] = _mm512_fmadd_ps(one, first, y[r][0]);
                y[r][1] = _mm512_fmadd_ps(one, second, y[r][1]);
            }
        }
        HEADWAY_EACH_ROW out[r][0] = y[r][0], out[r][1] = y[r][1];
    }
};

template <int R>
struct Int8Kernel {
    static void run(const uint8_t* panel, Ahead ahead, const Rows<R>& x, int groups, Sums<R>& y) {
        const int inputs = groups * kGroup;
        __m512i sums[R][2];
        HEADWAY_EACH_ROW sums[r][0] = sums[r][1] = broadcast_four(x.row[r] + inputs + 4);
        for (int k = 0; k < inputs; k += 8, panel += 4 * kVectorBytes) {
            if (k % kGroup == 0) ahead.ask();
            add_four<R>(sums, vector_at(panel), vector_at(panel + 64), x, k);
            add_four<R>(sums, vector_at(panel + 128), vector_at(panel + 192), x, k + 4);
        }
        const __m512 scales[2] = {_mm512_load_ps(panel), _mm512_load_ps(panel + kVectorBytes)};
        HEADWAY_EACH_ROW for (int v = 0; v < 2; ++v) {
            const __m512 scale = _mm512_mul_ps(broadcast_float(x.row[r] + inputs), scales[v]);
            y[r][v] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][v]), scale);
        }
    }
};

// Of many rows: the only float work of a group is one multiplication and addition, half of Q8_0's and a third of Q4_1's.
template <int R>
struct Int8ManyKernel {
    static void run(const uint8_t* panel, Ahead ahead, const Rows<R>& x, int groups, Sums<R>& out) {
        Sums<R> y;
        HEADWAY_EACH_ROW y[r][0] = y[r][1] = _mm512_setzero_ps();
        for (int g = 0; g < groups; ++g, panel += group_bytes(HEADWAY_INT8_MANY)) {
            ahead.ask();
            const int at_scale = groups * kGroup + 4 * g, at_sum = at_scale + 4 * groups;
            __m512i sums[R][2];
            HEADWAY_EACH_ROW sums[r][0] = sums[r][1] = broadcast_four(x.row[r] + at_sum);
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; ++j)
                add_four<R>(sums, vector_at(panel + j * 128), vector_at(panel + j * 128 + 64), x, g * kGroup + 4 * j);
            HEADWAY_EACH_ROW {
                const __m512 scale = broadcast_float(x.row[r] + at_scale);
                for (int v = 0; v < 2; ++v) y[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), scale, y[r][v]);
            }
        }
        HEADWAY_EACH_ROW for (int v = 0; v < 2; ++v)
            out[r][v] = _mm512_mul_ps(y[r][v], _mm512_load_ps(panel + v * kVectorBytes));
    }
};

// The 16 halves of vector v of a scale line.
inline __m512 halves_at(const uint8_t* line, int v) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(line) + v));
}

// KIND's 32 k of one panel: all products of one group.
template <int KIND, int R>
inline void add_group(__m512i (&sums)[R][2], const uint8_t* panel, const Rows<R>& x, int k) {
    if constexpr (KIND == HEADWAY_Q8_0) {
        _Pragma("GCC unroll 8") for (int j = 0; j < 8; ++j)
            add_four<R>(sums, vector_at(panel + j * 128), vector_at(panel + j * 128 + 64), x, k + 4 * j);
    } else {
        const __m512i low = _mm512_set1_epi8(15);
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; ++j) {
            const __m512i first = vector_at(panel + j * 128), second = vector_at(panel + j * 128 + 64);
            add_four<R>(sums, _mm512_and_si512(first, low), _mm512_and_si512(second, low), x, k + 4 * j);
            add_four<R>(sums, _mm512_and_si512(_mm512_srli_epi16(first, 4), low),
                        _mm512_and_si512(_mm512_srli_epi16(second, 4), low), x, k + 16 + 4 * j);
        }
    }
}

template <int KIND, int R>
struct GroupKernel {
    static void run(const uint8_t* panel, Ahead ahead, const Rows<R>& x, int groups, Sums<R>& out) {
        constexpr int bytes = group_bytes(KIND), values = KIND == HEADWAY_Q8_0 ? 1024 : 512;
        Sums<R> y;
        HEADWAY_EACH_ROW y[r][0] = y[r][1] = _mm512_setzero_ps();
        for (int g = 0; g < groups; ++g, panel += bytes) {
            ahead.ask();
            const int at_scale = groups * kGroup + 4 * g, at_sum = at_scale + 4 * groups;
            __m512i sums[R][2];
            HEADWAY_EACH_ROW sums[r][0] = sums[r][1] =
                KIND == HEADWAY_Q4_1 ? _mm512_setzero_si512() : broadcast_four(x.row[r] + at_sum);
            add_group<KIND, R>(sums, panel, x, g * kGroup);
            for (int v = 0; v < 2; ++v) {
                const __m512 scale = halves_at(panel + values, v);
                HEADWAY_EACH_ROW {
                    const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][v]), broadcast_float(x.row[r] + at_scale));
                    y[r][v] = _mm512_fmadd_ps(part, scale, y[r][v]);
                }
                if constexpr (KIND == HEADWAY_Q4_1) {
                    const __m512 least = halves_at(panel + values + kVectorBytes, v);
                    HEADWAY_EACH_ROW y[r][v] = _mm512_fmadd_ps(least, broadcast_float(x.row[r] + at_sum), y[r][v]);
                }
            }
        }
        HEADWAY_EACH_ROW out[r][0] = y[r][0], out[r][1] = y[r][1];
    }
};

template <int R> using Q40Kernel = GroupKernel<HEADWAY_Q4_0, R>;
template <int R> using Q41Kernel = GroupKernel<HEADWAY_Q4_1, R>;
template <int R> using Q80Kernel = GroupKernel<HEADWAY_Q8_0, R>;

}  // namespace headway
