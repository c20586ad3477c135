// What is done to one row (one token) between the products: RMSNorm, rotary embedding, largest value.
//
//   norm     y[i] = x[i] · weight[i] / sqrt(mean_j(x[j]²) + eps)                    (arXiv 1910.07467)
//   rotate   y[i] = x[i] · cos[i] − x[i + d/2] · sin[i];  y[i + d/2] = x[i + d/2] · cos[i] + x[i] · sin[i],  i < d/2
//                                                                                   (arXiv 2104.09864, half-split)
// All in float32; x and y may be the same memory.
#pragma once

#include "vector.h"

namespace headway {

inline void norm_row(const float* x, const float* weight, float eps, int width, float* y) {
    __m512 squares = _mm512_setzero_ps();
    for (int i = 0; i < width; i += kLanes) {
        const __m512 v = _mm512_maskz_loadu_ps(lanes_below(width - i), x + i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(width);
    const __m512 by = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
    for (int i = 0; i < width; i += kLanes) {
        const __mmask16 inside = lanes_below(width - i);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(inside, x + i), by);
        _mm512_mask_storeu_ps(y + i, inside, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(inside, weight + i)));
    }
}

inline void rotate_row(const float* x, const float* cosines, const float* sines, int width, float* y) {
    const int half = width / 2;
    for (int i = 0; i < half; i += kLanes) {
        const __mmask16 inside = lanes_below(half - i);
        const __m512 first = _mm512_maskz_loadu_ps(inside, x + i), second = _mm512_maskz_loadu_ps(inside, x + half + i);
        const __m512 c = _mm512_maskz_loadu_ps(inside, cosines + i), s = _mm512_maskz_loadu_ps(inside, sines + i);
        _mm512_mask_storeu_ps(y + i, inside, _mm512_fnmadd_ps(second, s, _mm512_mul_ps(first, c)));
        _mm512_mask_storeu_ps(y + half + i, inside, _mm512_fmadd_ps(first, s, _mm512_mul_ps(second, c)));
    }
}

inline void round_row(const float* x, int width, uint16_t* y) {
    for (int i = 0; i < width; i += kLanes) {
        const __mmask16 inside = lanes_below(width - i);
        _mm256_mask_storeu_epi16(y + i, inside, to_bf16(_mm512_maskz_loadu_ps(inside, x + i)));
    }
}

// The largest of some values and where it is; the first of equals.
struct Largest {
    float value = -__builtin_inff();
    int32_t index = 0;

    void take(float other, int32_t at) {
        if (other > value || (other == value && at < index)) {
            value = other;
            index = at;
        }
    }
};

// Of the 16 lanes from `index` on, a multiple of 16, those that a row may choose; a row without a mask may choose all.
inline __mmask16 allowed_lanes(const uint16_t* mask, int32_t index) {
    return mask == nullptr ? __mmask16(0xFFFF) : __mmask16(mask[index / kLanes]);
}

// The first that a row may choose, whatever the logits are; 0: it has no mask, or one that leaves nothing.
inline int32_t first_allowed(const uint16_t* mask, int width) {
    for (int i = 0; mask != nullptr && i < width; i += kLanes) {
        const unsigned lanes = mask[i / kLanes] & lanes_below(width - i);
        if (lanes != 0) return i + __builtin_ctz(lanes);
    }
    return 0;
}

// Values as they are where the mask allows them, else −∞.
inline void copy_allowed(const float* values, int count, int32_t first_index, const uint16_t* mask, float* out) {
    const __m512 never = _mm512_set1_ps(-__builtin_inff());
    for (int i = 0; i < count; i += kLanes) {
        const __mmask16 inside = lanes_below(count - i), allowed = allowed_lanes(mask, first_index + i);
        _mm512_mask_storeu_ps(out + i, inside, _mm512_mask_loadu_ps(never, inside & allowed, values + i));
    }
}

inline void largest_of(const float* values, int count, int32_t first_index, const uint16_t* mask, Largest& best) {
    __m512 most = _mm512_set1_ps(-__builtin_inff());
    for (int i = 0; i < count; i += kLanes) {
        const __mmask16 inside = lanes_below(count - i) & allowed_lanes(mask, first_index + i);
        // In this order what is not a number is passed over.
        most = _mm512_mask_max_ps(most, inside, _mm512_maskz_loadu_ps(inside, values + i), most);
    }
    const float top = _mm512_reduce_max_ps(most);
    if (!(top > best.value) && !(top == best.value && first_index < best.index)) return;
    for (int i = 0; i < count; i += kLanes) {
        const __mmask16 inside = lanes_below(count - i) & allowed_lanes(mask, first_index + i);
        const __mmask16 hit = _mm512_mask_cmp_ps_mask(inside, _mm512_maskz_loadu_ps(inside, values + i), _mm512_set1_ps(top), _CMP_EQ_OQ);
        if (hit != 0) return best.take(top, first_index + i + __builtin_ctz(hit));
    }
}

}  // namespace headway
