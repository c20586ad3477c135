// New keys and values into their blocks, in the layouts of attention.h.
#include <algorithm>

#include "attention.h"
#include "vector.h"

namespace headway {
namespace {

// Where one token's key or value belongs.
struct Place {
    uint8_t* tile;
    int offset;  // in its block
};

Place place_of(const AttentionShape& shape, const int32_t* table, int position, int kv_head, uint8_t* pool) {
    const int64_t block = table[position / shape.block_size];
    return {pool + (block * shape.kv_heads + kv_head) * kv_tile_bytes(shape), position % shape.block_size};
}

void write_bf16(const AttentionShape& shape, const Place& key_place, const float* key, const Place& value_place,
                const float* value) {
    const int width = shape.head_dim, offset = key_place.offset;
    auto* keys = reinterpret_cast<uint32_t*>(key_place.tile) + offset;
    auto* values = reinterpret_cast<uint32_t*>(value_place.tile) + offset / 2 * width;
    const __mmask32 half = offset % 2 ? 0xAAAAAAAA : 0x55555555;
    alignas(32) uint32_t pairs[kLanes / 2];
    for (int i = 0; i < width; i += kLanes) {
        const __mmask16 inside = lanes_below(width - i);
        _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), to_bf16(_mm512_maskz_loadu_ps(inside, key + i)));
        for (int pair = 0; pair < std::min(kLanes, width - i) / 2; ++pair) {
            keys[int64_t(i / 2 + pair) * shape.block_size] = pairs[pair];
        }
        // Each word holds this token's half and its neighbour's.
        const __m512i wide = _mm512_cvtepu16_epi32(to_bf16(_mm512_maskz_loadu_ps(inside, value + i)));
        const __m512i placed = offset % 2 ? _mm512_slli_epi32(wide, 16) : wide;
        const __mmask32 real = width - i >= kLanes ? 0xFFFFFFFF : (1u << 2 * (width - i)) - 1;
        _mm512_mask_storeu_epi16(values + i, half & real, placed);
    }
}

struct Scale {
    float scale, inverse;
};

Scale scale_of(const float* values, int width) {
    __m512 largest = _mm512_setzero_ps();
    for (int i = 0; i < width; i += kLanes) largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(values + i)));
    const float most = _mm512_reduce_max_ps(largest);
    // Below this, 127 / max would overflow; such values count as zero.
    return most > 1e-35f ? Scale{most / 127.0f, 127.0f / most} : Scale{0.0f, 0.0f};
}

__m512i rounded(const float* values, float inverse) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values), _mm512_set1_ps(inverse)));
}

void write_int8(const AttentionShape& shape, const Place& key_place, const float* key, const Place& value_place,
                const float* value) {
    const int width = shape.head_dim, offset = key_place.offset;
    const Scale key_scale = scale_of(key, width), value_scale = scale_of(value, width);
    auto* keys = reinterpret_cast<uint32_t*>(key_place.tile) + offset;
    uint8_t* values = value_place.tile + offset / 4 * width * 4 + offset % 4;
    alignas(16) uint32_t fours[kLanes / 4];
    alignas(16) uint8_t bytes[kLanes];
    for (int i = 0; i < width; i += kLanes) {
        const __m512i shifted = _mm512_add_epi32(rounded(key + i, key_scale.inverse), _mm512_set1_epi32(128));
        _mm_store_si128(reinterpret_cast<__m128i*>(fours), _mm512_cvtepi32_epi8(shifted));
        for (int four = 0; four < kLanes / 4; ++four) keys[int64_t(i / 4 + four) * shape.block_size] = fours[four];
        _mm_store_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(rounded(value + i, value_scale.inverse)));
        for (int lane = 0; lane < kLanes; ++lane) values[(i + lane) * 4] = bytes[lane];
    }
    const int64_t scales = int64_t(shape.block_size) * width;
    reinterpret_cast<float*>(key_place.tile + scales)[offset] = key_scale.scale;
    reinterpret_cast<float*>(value_place.tile + scales)[offset] = value_scale.scale;
}

}  // namespace

void write_kv(const AttentionShape& shape, const int32_t* table, int position, int kv_head, const float* key,
              const float* value, const KvPools& pools) {
    const Place key_place = place_of(shape, table, position, kv_head, pools.keys);
    const Place value_place = place_of(shape, table, position, kv_head, pools.values);
    if (shape.element == HEADWAY_ELEMENT_INT8) write_int8(shape, key_place, key, value_place, value);
    else write_bf16(shape, key_place, key, value_place, value);
}

}  // namespace headway
