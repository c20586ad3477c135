// Small AVX-512 pieces: bfloat16, tails shorter than a vector, 2^x.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace headway {

constexpr int kLanes = 16;

inline __mmask16 lanes_below(int count) {
    return count >= kLanes ? __mmask16(0xFFFF) : __mmask16((1u << (count < 0 ? 0 : count)) - 1);
}

// 16 bfloat16 to float32, exact.
inline __m512 from_bf16(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

// 16 float32 to bfloat16, to nearest even.
inline __m256i to_bf16(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }

// sums + the products of 16 pairs of bfloat16, or fours of bytes; each lane sums its own. As assembly: GCC 12 takes
// the intrinsics' accumulator for a separate input and copies or spills it.
inline void dot_twos(__m512& sums, __m512i a, __m512i b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
}

inline void dot_fours(__m512i& sums, __m512i unsigned_fours, __m512i signed_fours) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_fours), "v"(signed_fours));
}

// 2^x for x ≤ 126, relative error under 2e-7; below −126 the smallest normal number.
//   2^x = 2^n · 2^f, n = round(x), |f| ≤ 1/2; the polynomial is 2^f's minimax of degree 6 (as in Cephes' exp2f).
inline __m512 exp2_of(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(1.535336188319500e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.339887440266574e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357674640e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471162809e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791363012e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472028550421e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

}  // namespace headway
