// The loops of attention around the two products of either format of keys (attention_bf16.h, attention_int8.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention_products.h"
#include "attention_scratch.h"

namespace headway {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

template <class Keys>
class TileAttention {
  public:
    TileAttention(const AttentionShape& shape, const AttentionItem& item, const AttentionItem* next, const KvPools& pools,
                  uint8_t* memory)
        : shape_(shape),
          item_(item),
          tile_(*item.tile),
          next_(next),
          pools_(pools),
          group_(shape.query_heads / shape.kv_heads),
          rows_(tile_.tokens * group_),
          width_(padded(shape.head_dim)),
          end_(tile_.first_position + tile_.tokens),
          scale_(shape.scale * 1.44269504088896341f),  // log2 e: the exponentials are powers of two
          own_(memory, rows_, width_) {}

    void run(const uint16_t* q, float* out) {
        load_queries(q);
        std::fill(own_.total_max, own_.total_max + rows_, kNothing);
        const Splits splits = splits_of(shape_, tile_);
        for (int split = splits.begin; split < splits.end; ++split) {
            compute(split, split + 1 == splits.end);
            merge_split();
        }
        store(out);
    }

    void run_split(const uint16_t* q, int split, float* part) {
        load_queries(q);
        compute(split, true);
        carry([&](float* own, int64_t count) { part = std::copy(own, own + count, part); });
    }

    void merge(const float* parts, float* out) {
        std::fill(own_.total_max, own_.total_max + rows_, kNothing);
        const Splits splits = splits_of(shape_, tile_);
        for (int split = splits.begin; split < splits.end; ++split) {
            carry([&](float* own, int64_t count) { std::copy(parts, parts + count, own), parts += count; });
            merge_split();
        }
        store(out);
    }

  private:
    // The three pieces of a split's result.
    template <class Copy>
    void carry(Copy&& copy) {
        copy(own_.part, int64_t(rows_) * width_);
        copy(own_.part_max, rows_);
        copy(own_.part_sums, int64_t(rows_) * kLanes);
    }

    int first_seen(int position) const {
        return shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
    }

    void load_queries(const uint16_t* q) {
        const int64_t stride = int64_t(shape_.query_heads) * shape_.head_dim;
        for (int row = 0; row < rows_; ++row) {
            const int token = row / group_, head = item_.kv_head * group_ + row % group_;
            const uint16_t* from = q + (tile_.first_row + token) * stride + head * shape_.head_dim;
            Keys::load_query(own_, row, from, shape_.head_dim, width_);
        }
    }

    // One split's part: weights relative to their largest, and their sums.
    void compute(int split, bool is_last) {
        std::fill(own_.part_max, own_.part_max + rows_, kNothing);
        std::memset(own_.part_sums, 0, sizeof(float) * rows_ * kLanes);
        std::memset(own_.part, 0, sizeof(float) * rows_ * width_);
        const int begin = std::max(split * kKeySplit, first_seen(tile_.first_position) / kKeyTile * kKeyTile);
        const int end = std::min((split + 1) * kKeySplit, end_);
        for (int key = begin; key < end; key += kKeyTile) {
            KeyTile keys = find(key);
            if (key + kKeyTile < end || !is_last) locate(item_, key + kKeyTile, end_, keys.next_key, keys.next_value);
            else locate_next(keys);
            add_keys(keys, key);
        }
    }

    const uint8_t* kv_tile(const uint8_t* pool, const AttentionItem& item, int position) const {
        const int64_t block = item.tile->table[position / shape_.block_size];
        return pool + (block * shape_.kv_heads + item.kv_head) * Keys::tile_bytes(shape_);
    }

    bool is_in_place() const { return shape_.block_size % kLanes == 0 && shape_.head_dim % kLanes == 0; }

    // Where the 64 keys from `first` on lie: read in place when vectors fit into blocks, else gathered.
    KeyTile find(int first) {
        KeyTile found;
        found.keys = std::min(kKeyTile, end_ - first);
        found.width = width_;
        found.next_key[0] = found.next_value[0] = nullptr;
        found.key_stride = is_in_place() ? shape_.block_size : kKeyTile;
        if (!is_in_place()) {
            gather(first, found.keys);
            for (int part = 0; part < 4; ++part) {
                found.key[part] = own_.keys + part * kLanes;
                found.value[part] = own_.values + part * kLanes / Keys::kKeysOfWord * width_;
            }
            return found;
        }
        locate(item_, first, end_, found.key, found.value);
        for (int part = 0; part < 4; ++part) {
            const int position = in_range(first, part, end_);
            found.key_scale[part] = scales_at(pools_.keys, item_, position);
            found.value_scale[part] = scales_at(pools_.values, item_, position);
        }
        return found;
    }

    // Behind a tile of 8-bit values.
    const float* scales_at(const uint8_t* pool, const AttentionItem& item, int position) const {
        const int64_t values = int64_t(shape_.block_size) * shape_.head_dim;
        return reinterpret_cast<const float*>(kv_tile(pool, item, position) + values) + position % shape_.block_size;
    }

    // Behind the end: anything that may be read; it will be masked.
    static int in_range(int first, int part, int end) {
        return std::min(first + part * kLanes, (end - 1) / kLanes * kLanes);
    }

    void locate(const AttentionItem& item, int first, int end, const uint32_t** keys, const uint32_t** values) const {
        if (first >= end || !is_in_place()) return;
        for (int part = 0; part < 4; ++part) {
            const int position = in_range(first, part, end), offset = position % shape_.block_size;
            const int row = offset / Keys::kKeysOfWord;
            keys[part] = reinterpret_cast<const uint32_t*>(kv_tile(pools_.keys, item, position)) + offset;
            values[part] = reinterpret_cast<const uint32_t*>(kv_tile(pools_.values, item, position)) + row * width_;
            if (Keys::kHasScales) {
                fetch(scales_at(pools_.keys, item, position));
                fetch(scales_at(pools_.values, item, position));
            }
        }
    }

    void locate_next(KeyTile& keys) const {
        if (next_ == nullptr) return;
        const AttentionTile& tile = *next_->tile;
        const int begin = first_seen(tile.first_position) / kKeyTile * kKeyTile;
        locate(*next_, begin, tile.first_position + tile.tokens, keys.next_key, keys.next_value);
    }

    // Of bfloat16 only: other formats are read in place or not at all.
    void gather(int first, int count) {
        std::memset(own_.keys, 0, sizeof(uint32_t) * width_ / 2 * kKeyTile);
        std::memset(own_.values, 0, sizeof(uint32_t) * width_ * kKeyTile / 2);
        uint16_t* values = reinterpret_cast<uint16_t*>(own_.values);
        for (int key = 0; key < count; ++key) {
            const int offset = (first + key) % shape_.block_size;
            const auto* from = reinterpret_cast<const uint32_t*>(kv_tile(pools_.keys, item_, first + key));
            for (int pair = 0; pair < shape_.head_dim / 2; ++pair) {
                own_.keys[pair * kKeyTile + key] = from[pair * shape_.block_size + offset];
            }
            const auto* value = reinterpret_cast<const uint16_t*>(kv_tile(pools_.values, item_, first + key)) +
                                offset / 2 * shape_.head_dim * 2 + offset % 2;
            for (int i = 0; i < shape_.head_dim; ++i) values[(key / 2 * width_ + i) * 2 + key % 2] = value[i * 2];
        }
    }

    void add_keys(const KeyTile& keys, int first) {
        Keys::score(keys, own_, rows_);
        for (int row = 0; row < rows_; ++row) {
            const int position = tile_.first_position + row / group_;
            weigh(keys, row, visible(first_seen(position) - first, position + 1 - first));
        }
        Keys::mix(keys, own_, rows_);
    }

    // Bit j: key j of the tile lies in [from, to).
    static uint64_t visible(int from, int to) {
        if (to <= 0 || from >= kKeyTile) return 0;
        const uint64_t below_to = to >= kKeyTile ? ~0ULL : (1ULL << to) - 1;
        return from <= 0 ? below_to : below_to & ~((1ULL << from) - 1);
    }

    // Scores of a row to weights 2^(s − max); what was there is rescaled.
    void weigh(const KeyTile& keys, int row, uint64_t seen) {
        const __m512 nothing = _mm512_set1_ps(kNothing);
        __m512 s[4], most = nothing;
        for (int part = 0; part < 4; ++part) {
            const __m512 score = Keys::scaled(keys, own_, row, part, scale_);
            s[part] = _mm512_mask_mov_ps(nothing, __mmask16(seen >> (part * kLanes)), score);
            most = _mm512_max_ps(most, s[part]);
        }
        const float before = own_.part_max[row];
        const float now = std::max(before, _mm512_reduce_max_ps(most));
        if (now == kNothing || seen == 0) return Keys::keep_nothing(own_, row);  // leaves every bit as it was
        __m512 sums = _mm512_load_ps(own_.part_sums + row * kLanes);
        if (now != before) {
            const float factor = before == kNothing ? 0.0f : _mm512_cvtss_f32(exp2_of(_mm512_set1_ps(before - now)));
            rescale(own_.part + int64_t(row) * width_, factor);
            sums = _mm512_mul_ps(sums, _mm512_set1_ps(factor));
            own_.part_max[row] = now;
        }
        const __m512 shift = _mm512_set1_ps(now);
        for (int part = 0; part < 4; ++part) {
            s[part] = _mm512_maskz_mov_ps(__mmask16(seen >> (part * kLanes)), exp2_of(_mm512_sub_ps(s[part], shift)));
        }
        _mm512_store_ps(own_.part_sums + row * kLanes, Keys::keep_weights(keys, own_, row, s, sums));
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
            const int token = row / group_, head = item_.kv_head * group_ + row % group_;
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
    const AttentionItem& item_;
    const AttentionTile& tile_;
    const AttentionItem* next_;
    const KvPools& pools_;
    const int group_, rows_, width_, end_;
    const float scale_;
    Scratch own_;
};

}  // namespace headway
