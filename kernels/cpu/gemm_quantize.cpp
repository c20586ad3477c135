// Activation rows: bf16, f32, or s8 with a scale per row (INT8) or per 32 values (GGUF kinds).
//
//   d = max|x| / 127,   q = round(x · 127 / max|x|),   x ≈ d · q       (round to nearest even; d = 0 where all are 0)
//
// One scale per 32 values, as llama.cpp's Q8_1: SmolLM2's perplexity rises by 0.5 % instead of 3.2 % (one per row).
#include "gemm_layout.h"

namespace headway {
namespace {

// 16 values from x, `left` of them real.
inline __m512 load_values(const void* x, int element, int64_t index, int left) {
    const __mmask16 real = lanes_below(left);
    if (element == HEADWAY_ELEMENT_F32) return _mm512_maskz_loadu_ps(real, static_cast<const float*>(x) + index);
    return from_bf16(_mm256_maskz_loadu_epi16(real, static_cast<const uint16_t*>(x) + index));
}

void round_to_bf16(const void* x, int element, int64_t start, int inputs, uint8_t* out) {
    for (int k = 0; k < groups_of(inputs) * kGroup; k += kLanes) {
        const __m256i rounded = to_bf16(load_values(x, element, start + k, inputs - k));
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + 2 * k), rounded);
    }
}

void copy_f32(const void* x, int element, int64_t start, int inputs, uint8_t* out) {
    for (int k = 0; k < groups_of(inputs) * kGroup; k += kLanes)
        _mm512_store_ps(out + 4 * k, load_values(x, element, start + k, inputs - k));
}

// 16 values to s8 at `out`; returns their sums in 4-byte lanes.
inline __m512i store_rounded(__m512 x, __m512 inverse, uint8_t* out) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
    _mm_store_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(q));
    return q;
}

struct Scale {
    float scale, inverse;
};

inline Scale scale_of(__m512 largest) {
    const float most = _mm512_reduce_max_ps(largest);
    // Below this, 127 / max would overflow; such values count as zero.
    return most > 1e-35f ? Scale{most / 127.0f, 127.0f / most} : Scale{0.0f, 0.0f};
}

void quantize_row(const void* x, int element, int64_t start, int inputs, uint8_t* out) {
    const int padded = groups_of(inputs) * kGroup;
    __m512 largest = _mm512_setzero_ps();
    for (int k = 0; k < inputs; k += kLanes)
        largest = _mm512_max_ps(largest, _mm512_abs_ps(load_values(x, element, start + k, inputs - k)));
    const Scale scale = scale_of(largest);
    __m512i sums = _mm512_setzero_si512();
    for (int k = 0; k < padded; k += kLanes) {
        const __m512 values = load_values(x, element, start + k, inputs - k);
        sums = _mm512_add_epi32(sums, store_rounded(values, _mm512_set1_ps(scale.inverse), out + k));
    }
    const int32_t offset = -128 * _mm512_reduce_add_epi32(sums);
    memcpy(out + padded, &scale.scale, 4);
    memcpy(out + padded + 4, &offset, 4);
}

// Groups [begin, end) of a row, whose values lie at x[start + 32 · begin …].
void quantize_groups(int kind, const void* x, int element, int64_t start, int begin, int end, int inputs, uint8_t* row) {
    const int groups = groups_of(inputs);
    float* scales = reinterpret_cast<float*>(row + groups * kGroup);
    uint8_t* out = row + begin * kGroup;
    uint8_t* sums = row + groups * (kGroup + 4) + 4 * begin;
    start += int64_t(begin) * kGroup;
    for (int g = begin; g < end; ++g, start += kGroup, out += kGroup, sums += 4) {
        const __m512 low = load_values(x, element, start, kLanes);
        const __m512 high = load_values(x, element, start + kLanes, kLanes);
        const Scale scale = scale_of(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
        const __m512 inverse = _mm512_set1_ps(scale.inverse);
        const __m512i both = _mm512_add_epi32(store_rounded(low, inverse, out), store_rounded(high, inverse, out + kLanes));
        const int32_t sum = _mm512_reduce_add_epi32(both);
        const int32_t offset = (kind == HEADWAY_Q4_0 ? -8 : -128) * sum;
        const float scaled = scale.scale * float(sum);
        scales[g] = scale.scale;
        memcpy(sums, kind == HEADWAY_Q4_1 ? static_cast<const void*>(&scaled) : &offset, 4);
    }
}

}  // namespace
}  // namespace headway

using namespace headway;

int64_t headway_activation_row_bytes(int32_t kind, int32_t inputs) { return activation_row_bytes(kind, inputs); }

void headway_quantize_rows(int32_t kind, const void* x, int32_t element, int64_t stride, int32_t begin, int32_t end,
                           int32_t inputs, void* activations) {
    const int64_t row_bytes = activation_row_bytes(kind, inputs);
    for (int64_t row = begin; row < end; ++row) {
        uint8_t* out = static_cast<uint8_t*>(activations) + row * row_bytes;
        if (kind == HEADWAY_BF16) round_to_bf16(x, element, row * stride, inputs, out);
        else if (kind == HEADWAY_F32) copy_f32(x, element, row * stride, inputs, out);
        else if (kind == HEADWAY_INT8) quantize_row(x, element, row * stride, inputs, out);
        else quantize_groups(kind, x, element, row * stride, 0, groups_of(inputs), inputs, out);
    }
}

void headway_quantize_columns(int32_t kind, const float* x, int32_t begin, int32_t end, int32_t row, int32_t inputs,
                              void* activations) {
    uint8_t* out = static_cast<uint8_t*>(activations) + row * activation_row_bytes(kind, inputs);
    if (kind == HEADWAY_BF16) round_to_bf16(x, HEADWAY_ELEMENT_F32, begin, end - begin, out + 2 * begin);
    else if (kind == HEADWAY_F32) copy_f32(x, HEADWAY_ELEMENT_F32, begin, end - begin, out + 4 * begin);
    else quantize_groups(kind, x, HEADWAY_ELEMENT_F32, 0, begin / kGroup, end / kGroup, inputs, out);
}
