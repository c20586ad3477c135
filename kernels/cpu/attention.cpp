#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_products.h"
#include "attention_scratch.h"
#include "vector.h"

namespace headway {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

class TileAttention {
  public:
    TileAttention(const AttentionShape& shape, const AttentionTile& tile, int kv_head, const uint16_t* key_pool,
                  const uint16_t* value_pool, uint8_t* memory)
        : shape_(shape),
          tile_(tile),
          kv_head_(kv_head),
          group_(shape.query_heads / shape.kv_heads),
          rows_(tile.tokens * group_),
          width_(padded(shape.head_dim)),
          keys_(key_pool),
          values_(value_pool),
          scale_(shape.scale * 1.44269504088896341f),  // log2 e: the exponentials are powers of two
          own_(memory, rows_, width_) {}

    void run(const uint16_t* q, float* out) {
        const int end = tile_.first_position + tile_.tokens;
        const int begin = first_seen(tile_.first_position);
        fetch_first(begin / kKeyTile * kKeyTile, end);
        load_queries(q);
        std::fill(own_.total_max, own_.total_max + rows_, kNothing);
        for (int split = begin / kKeySplit * kKeySplit; split < end; split += kKeySplit) {
            start_split();
            const int first = std::max(split, begin / kKeyTile * kKeyTile);
            for (int key = first; key < std::min(split + kKeySplit, end); key += kKeyTile) add_keys(key, end);
            merge_split();
        }
        store(out);
    }

  private:
    int first_seen(int position) const {
        return shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
    }

    void load_queries(const uint16_t* q) {
        const int64_t stride = int64_t(shape_.query_heads) * shape_.head_dim;
        for (int row = 0; row < rows_; ++row) {
            const int token = row / group_, head = kv_head_ * group_ + row % group_;
            uint32_t* mine = own_.q + int64_t(row) * width_ / 2;
            std::memset(mine, 0, width_ * 2);
            std::memcpy(mine, q + (tile_.first_row + token) * stride + head * shape_.head_dim, shape_.head_dim * 2);
        }
    }

    void start_split() {
        std::fill(own_.part_max, own_.part_max + rows_, kNothing);
        std::memset(own_.part_sums, 0, sizeof(float) * rows_ * kLanes);
        std::memset(own_.part, 0, sizeof(float) * rows_ * width_);
    }

    const uint16_t* block_tile(const uint16_t* pool, int position) const {
        const int64_t size = int64_t(shape_.block_size) * shape_.head_dim;
        return pool + (int64_t(tile_.table[position / shape_.block_size]) * shape_.kv_heads + kv_head_) * size;
    }

    // Where the 64 keys from `first` on lie: read in place when vectors fit into blocks, else gathered.
    KeyTile find(int first, int end) {
        KeyTile found;
        found.keys = std::min(kKeyTile, end - first);
        found.pairs = width_ / 2;
        found.width = width_;
        if (shape_.block_size % kLanes != 0 || shape_.head_dim % kLanes != 0) {
            gather(first, found.keys);
            found.key_stride = kKeyTile;
            found.next_key[0] = found.next_value[0] = nullptr;
            for (int part = 0; part < 4; ++part) {
                found.key[part] = own_.keys + part * kLanes;
                found.value[part] = own_.values + part * kLanes / 2 * width_;
            }
            return found;
        }
        found.key_stride = shape_.block_size;
        locate(first, end, found.key, found.value);
        if (first + kKeyTile < end) {
            locate(first + kKeyTile, end, found.next_key, found.next_value);
        } else {
            found.next_key[0] = found.next_value[0] = nullptr;
        }
        return found;
    }

    void locate(int first, int end, const uint32_t** keys, const uint32_t** values) const {
        for (int part = 0; part < 4; ++part) {
            // Behind the end: anything that may be read; it will be masked.
            const int position = std::min(first + part * kLanes, (end - 1) / kLanes * kLanes);
            const int offset = position % shape_.block_size;
            keys[part] = reinterpret_cast<const uint32_t*>(block_tile(keys_, position)) + offset;
            values[part] = reinterpret_cast<const uint32_t*>(block_tile(values_, position)) + offset / 2 * width_;
        }
    }

    // The first keys and values, all at once: what follows is fetched while these are worked on.
    void fetch_first(int first, int end) const {
        if (shape_.block_size % kLanes != 0 || shape_.head_dim % kLanes != 0) return;
        const uint32_t *keys[4], *values[4];
        locate(first, end, keys, values);
        const int parts = std::min(4, (end - first + kLanes - 1) / kLanes);
        for (int part = 0; part < parts; ++part) {
            for (int pair = 0; pair < width_ / 2; ++pair) fetch(keys[part] + pair * shape_.block_size);
            for (int line = 0; line < 8 * width_; line += kLanes) fetch(values[part] + line);
        }
    }

    void gather(int first, int count) {
        std::memset(own_.keys, 0, sizeof(uint32_t) * width_ / 2 * kKeyTile);
        std::memset(own_.values, 0, sizeof(uint32_t) * width_ * kKeyTile / 2);
        uint16_t* values = reinterpret_cast<uint16_t*>(own_.values);
        for (int key = 0; key < count; ++key) {
            const int offset = (first + key) % shape_.block_size;
            const auto* from = reinterpret_cast<const uint32_t*>(block_tile(keys_, first + key));
            for (int pair = 0; pair < shape_.head_dim / 2; ++pair) {
                own_.keys[pair * kKeyTile + key] = from[pair * shape_.block_size + offset];
            }
            const uint16_t* value = block_tile(values_, first + key) + offset / 2 * shape_.head_dim * 2 + offset % 2;
            for (int i = 0; i < shape_.head_dim; ++i) values[(key / 2 * width_ + i) * 2 + key % 2] = value[i * 2];
        }
    }

    void add_keys(int first, int end) {
        const KeyTile keys = find(first, end);
        score(keys, own_.q, own_.scores, rows_);
        for (int row = 0; row < rows_; ++row) {
            const int position = tile_.first_position + row / group_;
            weigh(row, visible(first_seen(position) - first, position + 1 - first));
        }
        mix(keys, own_.weights, own_.part, rows_);
    }

    // Bit j: key j of the tile lies in [from, to).
    static uint64_t visible(int from, int to) {
        if (to <= 0 || from >= kKeyTile) return 0;
        const uint64_t below_to = to >= kKeyTile ? ~0ULL : (1ULL << to) - 1;
        return from <= 0 ? below_to : below_to & ~((1ULL << from) - 1);
    }

    // Scores of a row to weights 2^(s − max), rounded to bf16 as they enter the product; what was there is rescaled.
    void weigh(int row, uint64_t seen) {
        const float* scores = own_.scores + row * kKeyTile;
        const __m512 nothing = _mm512_set1_ps(kNothing), scale = _mm512_set1_ps(scale_);
        __m512 s[4], most = nothing;
        for (int part = 0; part < 4; ++part) {
            s[part] = _mm512_mul_ps(_mm512_load_ps(scores + part * kLanes), scale);
            s[part] = _mm512_mask_mov_ps(nothing, __mmask16(seen >> (part * kLanes)), s[part]);
            most = _mm512_max_ps(most, s[part]);
        }
        const float before = own_.part_max[row];
        const float now = std::max(before, _mm512_reduce_max_ps(most));
        __m512 sums = _mm512_load_ps(own_.part_sums + row * kLanes);
        auto* weights = reinterpret_cast<__m512i*>(own_.weights + row * kKeyTile / 2);
        if (now == kNothing || seen == 0) {  // nothing visible: leaves every bit as it was
            _mm512_store_si512(weights, _mm512_setzero_si512());
            _mm512_store_si512(weights + 1, _mm512_setzero_si512());
            return;
        }
        if (now != before) {
            const float factor = before == kNothing ? 0.0f : _mm512_cvtss_f32(exp2_of(_mm512_set1_ps(before - now)));
            rescale(own_.part + int64_t(row) * width_, factor);
            sums = _mm512_mul_ps(sums, _mm512_set1_ps(factor));
            own_.part_max[row] = now;
        }
        const __m512 shift = _mm512_set1_ps(now);
        __m512i rounded[2];
        for (int half = 0; half < 2; ++half) {
            const __mmask16 low = __mmask16(seen >> (32 * half)), high = __mmask16(seen >> (32 * half + 16));
            const __m512 a = _mm512_maskz_mov_ps(low, exp2_of(_mm512_sub_ps(s[2 * half], shift)));
            const __m512 b = _mm512_maskz_mov_ps(high, exp2_of(_mm512_sub_ps(s[2 * half + 1], shift)));
            rounded[half] = (__m512i)_mm512_cvtne2ps_pbh(b, a);
            sums = _mm512_add_ps(sums, from_bf16(_mm512_castsi512_si256(rounded[half])));
            sums = _mm512_add_ps(sums, from_bf16(_mm512_extracti64x4_epi64(rounded[half], 1)));
            _mm512_store_si512(weights + half, rounded[half]);
        }
        _mm512_store_ps(own_.part_sums + row * kLanes, sums);
    }

    void rescale(float* values, float factor) {
        const __m512 by = _mm512_set1_ps(factor);
        for (int i = 0; i < width_; i += kLanes) _mm512_store_ps(values + i, _mm512_mul_ps(_mm512_load_ps(values + i), by));
    }

    void merge_split() {
        for (int row = 0; row < rows_; ++row) {
            const float part = own_.part_max[row], total = own_.total_max[row];
            if (part == kNothing) continue;
            float* into = own_.total + int64_t(row) * width_;
            const float* from = own_.part + int64_t(row) * width_;
            float* into_sums = own_.total_sums + row * kLanes;
            const float* from_sums = own_.part_sums + row * kLanes;
            if (total == kNothing) {
                std::memcpy(into, from, sizeof(float) * width_);
                std::memcpy(into_sums, from_sums, sizeof(float) * kLanes);
                own_.total_max[row] = part;
                continue;
            }
            const float now = std::max(part, total);
            const __m512 old = exp2_of(_mm512_set1_ps(total - now)), fresh = exp2_of(_mm512_set1_ps(part - now));
            auto blend = [&](float* a, const float* b) {
                _mm512_store_ps(a, _mm512_fmadd_ps(_mm512_load_ps(a), old, _mm512_mul_ps(_mm512_load_ps(b), fresh)));
            };
            for (int i = 0; i < width_; i += kLanes) blend(into + i, from + i);
            blend(into_sums, from_sums);
            own_.total_max[row] = now;
        }
    }

    void store(float* out) {
        const int64_t stride = int64_t(shape_.query_heads) * shape_.head_dim;
        for (int row = 0; row < rows_; ++row) {
            const int token = row / group_, head = kv_head_ * group_ + row % group_;
            const float sum = _mm512_reduce_add_ps(_mm512_load_ps(own_.total_sums + row * kLanes));
            const __m512 by = _mm512_set1_ps(1.0f / sum);
            float* to = out + (tile_.first_row + token) * stride + head * shape_.head_dim;
            for (int i = 0; i < shape_.head_dim; i += kLanes) {
                const __m512 mixed = _mm512_mul_ps(_mm512_load_ps(own_.total + int64_t(row) * width_ + i), by);
                _mm512_mask_storeu_ps(to + i, lanes_below(shape_.head_dim - i), mixed);
            }
        }
    }

    const AttentionShape& shape_;
    const AttentionTile& tile_;
    const int kv_head_, group_, rows_, width_;
    const uint16_t *keys_, *values_;
    const float scale_;
    Scratch own_;
};

}  // namespace

int tile_tokens(const AttentionShape& shape) {
    return std::max(1, kTileRows / (shape.query_heads / shape.kv_heads));
}

int64_t attention_scratch_bytes(const AttentionShape& shape) {
    const int group = shape.query_heads / shape.kv_heads;
    const Scratch measured(nullptr, tile_tokens(shape) * group, padded(shape.head_dim));
    return measured.end - static_cast<uint8_t*>(nullptr);
}

void attend(const AttentionShape& shape, const AttentionTile& tile, int kv_head, const uint16_t* q,
            const uint16_t* key_pool, const uint16_t* value_pool, float* out, uint8_t* scratch) {
    TileAttention(shape, tile, kv_head, key_pool, value_pool, scratch).run(q, out);
}

void write_kv(const AttentionShape& shape, const int32_t* table, int position, int kv_head, const float* key,
              const float* value, uint16_t* key_pool, uint16_t* value_pool) {
    const int width = shape.head_dim, offset = position % shape.block_size;
    const int64_t tile = int64_t(table[position / shape.block_size]) * shape.kv_heads + kv_head;
    uint16_t* keys = key_pool + tile * shape.block_size * width + offset * 2;
    uint16_t* values = value_pool + tile * shape.block_size * width + offset / 2 * width * 2 + offset % 2;
    alignas(64) uint16_t rounded[kLanes];
    for (int i = 0; i < width; i += kLanes) {
        const __mmask16 inside = lanes_below(width - i);
        const int count = std::min(kLanes, width - i);
        _mm256_store_si256(reinterpret_cast<__m256i*>(rounded), to_bf16(_mm512_maskz_loadu_ps(inside, key + i)));
        for (int lane = 0; lane < count; ++lane) {
            keys[int64_t((i + lane) / 2) * shape.block_size * 2 + lane % 2] = rounded[lane];
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(rounded), to_bf16(_mm512_maskz_loadu_ps(inside, value + i)));
        for (int lane = 0; lane < count; ++lane) values[(i + lane) * 2] = rounded[lane];
    }
}

}  // namespace headway
