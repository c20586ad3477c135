// What happens to the 2 × 16 sums of a row: bias, then store, add to the residual, or act(gate) · up.
#pragma once

#include "gemm_layout.h"

namespace headway {

constexpr float kLog2E = 1.44269504f;

// 1 + e^−x; from x = −87.3 down no larger, so that nothing overflows.
inline __m512 one_and_exp_of_minus(__m512 x) {
    const __m512 power = _mm512_min_ps(_mm512_mul_ps(x, _mm512_set1_ps(-kLog2E)), _mm512_set1_ps(126.0f));
    return _mm512_add_ps(exp2_of(power), _mm512_set1_ps(1.0f));
}

inline __m512 silu(__m512 x) { return _mm512_div_ps(x, one_and_exp_of_minus(x)); }

// x/2 · (1 + tanh(u)) = x · σ(2u),  u = √(2/π) · (x + 0.044715 x³)
inline __m512 gelu_tanh(__m512 x) {
    const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    return _mm512_div_ps(x, one_and_exp_of_minus(_mm512_mul_ps(_mm512_mul_ps(x, cubic), _mm512_set1_ps(1.59576912f))));
}

// 16 values to `at`; only `real` lanes exist.
template <int ELEMENT, bool ADDS>
inline void put(void* values, int64_t at, __mmask16 real, __m512 y) {
    if constexpr (ELEMENT == HEADWAY_ELEMENT_F32) {
        float* to = static_cast<float*>(values) + at;
        if (ADDS) y = _mm512_add_ps(_mm512_maskz_loadu_ps(real, to), y);
        _mm512_mask_storeu_ps(to, real, y);
    } else {
        uint16_t* to = static_cast<uint16_t*>(values) + at;
        if (ADDS) y = _mm512_add_ps(from_bf16(_mm256_maskz_loadu_epi16(real, to)), y);
        _mm256_mask_storeu_epi16(to, real, to_bf16(y));
    }
}

// Where a vector of sums belongs.
struct Columns {
    int first;
    __mmask16 real;
    __m512 bias;
};

inline Columns columns_at(const HeadwayWeight& weight, int first, int left) {
    const __mmask16 real = lanes_below(left);
    return {first, real, weight.bias ? _mm512_maskz_loadu_ps(real, weight.bias + first) : _mm512_setzero_ps()};
}

template <int ELEMENT, bool ADDS>
void put_rows(const HeadwayOutput& output, int row, int rows, const Columns (&columns)[2], const __m512 (*y)[2]) {
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < 2; ++v) {
            const Columns& to = columns[v];
            put<ELEMENT, ADDS>(output.values, (row + r) * output.stride + to.first, to.real, _mm512_add_ps(y[r][v], to.bias));
        }
    }
}

template <int ELEMENT, __m512 ACTIVATION(__m512)>
void put_gated(const HeadwayOutput& output, int row, int rows, const Columns (&columns)[2], const __m512 (*y)[2]) {
    for (int r = 0; r < rows; ++r) {
        const __m512 gate = _mm512_add_ps(y[r][0], columns[0].bias), up = _mm512_add_ps(y[r][1], columns[1].bias);
        const int64_t at = (row + r) * output.stride + columns[0].first;
        put<ELEMENT, false>(output.values, at, columns[0].real, _mm512_mul_ps(ACTIVATION(gate), up));
    }
}

template <int ELEMENT>
inline void finish_as(const HeadwayOutput& output, int row, int rows, const Columns (&columns)[2], const __m512 (*y)[2]) {
    switch (output.epilogue) {
        case HEADWAY_ADD: return put_rows<ELEMENT, true>(output, row, rows, columns, y);
        case HEADWAY_SILU_MUL: return put_gated<ELEMENT, silu>(output, row, rows, columns, y);
        case HEADWAY_GELU_TANH_MUL: return put_gated<ELEMENT, gelu_tanh>(output, row, rows, columns, y);
        default: return put_rows<ELEMENT, false>(output, row, rows, columns, y);
    }
}

// A block's part of one panel to where it belongs.
inline void finish(const HeadwayWeight& weight, const HeadwayOutput& output, int row, int rows, int panel,
                   const __m512 (*y)[2]) {
    const int half = weight.outputs / 2, n = panel * (weight.paired ? kLanes : HEADWAY_PANEL);
    const int second = n + (weight.paired ? half : kLanes);
    const int left = (weight.paired ? half : weight.outputs) - n;
    const Columns columns[2] = {columns_at(weight, n, left),
                                columns_at(weight, second, weight.paired ? left : left - kLanes)};
    if (output.element == HEADWAY_ELEMENT_F32) finish_as<HEADWAY_ELEMENT_F32>(output, row, rows, columns, y);
    else finish_as<HEADWAY_ELEMENT_BF16>(output, row, rows, columns, y);
}

}  // namespace headway
