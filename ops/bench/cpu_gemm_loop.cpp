// The inner loops of cpu_gemm.py: one thread's share of many products in a row, and a plain read of memory.
#include <immintrin.h>
#include <time.h>

#include "gemm.h"

using Part = void (*)(const HeadwayWeight*, const void*, int32_t, int32_t, int32_t, const HeadwayOutput*);

static double seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

extern "C" {

// Share `share` of `shares` of every product's columns; seconds taken.
double bench_products(Part part, const HeadwayWeight* weights, const void* const* activations,
                      const HeadwayOutput* outputs, int count, int rows, int share, int shares) {
    const double start = seconds();
    for (int i = 0; i < count; ++i) {
        const int panels = (weights[i].outputs + HEADWAY_PANEL - 1) / HEADWAY_PANEL;
        const int begin = panels * share / shares * HEADWAY_PANEL, end = panels * (share + 1) / shares * HEADWAY_PANEL;
        part(&weights[i], activations[i], rows, begin, end < weights[i].outputs ? end : weights[i].outputs, &outputs[i]);
    }
    return seconds() - start;
}

// Read the same shares of the weights and nothing else; seconds taken.
double bench_read(const HeadwayWeight* weights, const int64_t* bytes, int count, int share, int shares, int64_t* sum) {
    const double start = seconds();
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (int i = 0; i < count; ++i) {
        const int64_t lines = bytes[i] / 256;
        const uint8_t *at = weights[i].buffer + lines * share / shares * 256,
                      *end = weights[i].buffer + lines * (share + 1) / shares * 256;
        for (; at < end; at += 256) {
            a = _mm512_add_epi64(a, _mm512_load_si512(at));
            b = _mm512_add_epi64(b, _mm512_load_si512(at + 64));
            c = _mm512_add_epi64(c, _mm512_load_si512(at + 128));
            d = _mm512_add_epi64(d, _mm512_load_si512(at + 192));
            _mm_prefetch(reinterpret_cast<const char*>(at + 8192), _MM_HINT_T1);
        }
    }
    *sum = _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
    return seconds() - start;
}
}
