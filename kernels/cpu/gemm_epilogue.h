// What happens to the 2 × 16 sums of a row: bias, then store, add to the residual, or act(gate) · up.
#pragma once

#include "gemm_layout.h"

namespace headway {

constexpr float kLog2E = 1.44269504f;

// 1 / (1 + e^−x), by e^−|x| so that nothing overflows.
inline __m512 sigmoid(__m512 x) {
    const __m512 small = exp2_of(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-kLog2E)));  // e^−|x|
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 below = _mm512_div_ps(small, _mm512_add_ps(one, small));  // σ(−|x|)
    return _mm512_mask_sub_ps(below, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ), one, below);
}

inline __m512 silu(__m512 x) { return _mm512_mul_ps(x, sigmoid(x)); }

// x/2 · (1 + tanh(u)) = x · σ(2u),  u = √(2/π) · (x + 0.044715 x³)
inline __m512 gelu_tanh(__m512 x) {
    const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(_mm512_mul_ps(x, cubic), _mm512_set1_ps(1.59576912f))));
}

// 16 values to columns n … of a row; only `left` of them exist.
inline void put(const HeadwayOutput& output, int row, int n, int left, __m512 y) {
    const __mmask16 real = lanes_below(left);
    const int64_t index = row * output.stride + n;
    if (output.element == HEADWAY_ELEMENT_F32) {
        float* to = static_cast<float*>(output.values) + index;
        if (output.epilogue == HEADWAY_ADD) y = _mm512_add_ps(_mm512_maskz_loadu_ps(real, to), y);
        _mm512_mask_storeu_ps(to, real, y);
    } else {
        uint16_t* to = static_cast<uint16_t*>(output.values) + index;
        if (output.epilogue == HEADWAY_ADD) y = _mm512_add_ps(from_bf16(_mm256_maskz_loadu_epi16(real, to)), y);
        _mm256_mask_storeu_epi16(to, real, to_bf16(y));
    }
}

inline __m512 biased(const HeadwayWeight& weight, int n, int left, __m512 y) {
    if (weight.bias == nullptr) return y;
    return _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes_below(left), weight.bias + n));
}

// A row's part of one panel to where it belongs.
inline void finish(const HeadwayWeight& weight, const HeadwayOutput& output, int row, int panel, const __m512 (&y)[2]) {
    const int outputs = weight.outputs;
    if (!weight.paired) {
        for (int v = 0; v < 2; ++v) {
            const int n = panel * HEADWAY_PANEL + v * kLanes;
            if (n < outputs) put(output, row, n, outputs - n, biased(weight, n, outputs - n, y[v]));
        }
        return;
    }
    const int half = outputs / 2, n = panel * kLanes, left = half - n;
    const __m512 gate = biased(weight, n, left, y[0]), up = biased(weight, half + n, left, y[1]);
    if (output.epilogue == HEADWAY_SILU_MUL) put(output, row, n, left, _mm512_mul_ps(silu(gate), up));
    else if (output.epilogue == HEADWAY_GELU_TANH_MUL) put(output, row, n, left, _mm512_mul_ps(gelu_tanh(gate), up));
    else {
        put(output, row, n, left, gate);
        put(output, row, half + n, left, up);
    }
}

}  // namespace headway
