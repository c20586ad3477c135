#include "attention.h"

#include "attention_bf16.h"
#include "attention_int8.h"
#include "attention_tile.h"

namespace headway {
namespace {

// Calls work(format) with the format of this shape's keys.
template <class Work>
auto with_keys(const AttentionShape& shape, Work&& work) {
    return shape.element == HEADWAY_ELEMENT_INT8 ? work(Int8Keys()) : work(Bf16Keys());
}

int group_of(const AttentionShape& shape) { return shape.query_heads / shape.kv_heads; }

}  // namespace

int tile_tokens(const AttentionShape& shape) { return std::max(1, kTileRows / group_of(shape)); }

Splits splits_of(const AttentionShape& shape, const AttentionTile& tile) {
    const int first = shape.window > 0 ? std::max(0, tile.first_position - shape.window + 1) : 0;
    return {first / kKeySplit, (tile.first_position + tile.tokens - 1) / kKeySplit + 1};
}

int64_t kv_tile_bytes(const AttentionShape& shape) {
    if (shape.element == HEADWAY_ELEMENT_F32) return int64_t(shape.block_size) * shape.head_dim * 4;
    return with_keys(shape, [&](auto keys) { return decltype(keys)::tile_bytes(shape); });
}

int64_t attention_scratch_bytes(const AttentionShape& shape) {
    const Scratch measured(nullptr, tile_tokens(shape) * group_of(shape), padded(shape.head_dim));
    return measured.end - static_cast<uint8_t*>(nullptr);
}

void attend(const AttentionShape& shape, const AttentionItem& item, const AttentionItem* next, const uint16_t* q,
            const KvPools& pools, float* out, uint8_t* scratch) {
    with_keys(shape, [&](auto keys) { TileAttention<decltype(keys)>(shape, item, next, pools, scratch).run(q, out); });
}

int64_t split_floats(const AttentionShape& shape, const AttentionTile& tile) {
    return int64_t(tile.tokens) * group_of(shape) * (padded(shape.head_dim) + 1 + kLanes);
}

void attend_split(const AttentionShape& shape, const AttentionItem& item, int split, const uint16_t* q,
                  const KvPools& pools, float* part, uint8_t* scratch) {
    with_keys(shape, [&](auto keys) {
        TileAttention<decltype(keys)>(shape, item, nullptr, pools, scratch).run_split(q, split, part);
    });
}

void merge_splits(const AttentionShape& shape, const AttentionItem& item, const float* parts, float* out, uint8_t* scratch) {
    with_keys(shape, [&](auto keys) {
        TileAttention<decltype(keys)>(shape, item, nullptr, KvPools(), scratch).merge(parts, out);
    });
}

}  // namespace headway
