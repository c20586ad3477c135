// Which pieces of attention a step computes, and in how many items.
//
// An item is one tile's queries of one kv head over all keys that they see. Where a step has too few of them to keep
// every member busy (one long sequence), each split of the keys is an item of its own, and the splits are merged in a
// phase of their own: in the same order, so to the same bits.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"

namespace headway {

struct SplitItem {
    AttentionItem item;
    int split;
    int64_t part;  // first float of its result
};

struct MergeItem {
    AttentionItem item;
    int64_t parts;
};

class AttentionPlan {
  public:
    void clear() { tiles_.clear(); }
    void add(const AttentionTile& tile) { tiles_.push_back(tile); }

    // After the last tile: put the longest first, and cut for `members`; `may_split`: whether the format allows it.
    void finish(const AttentionShape& shape, int members, bool may_split) {
        // What is dealt last should be short.
        std::stable_sort(tiles_.begin(), tiles_.end(), [](const AttentionTile& a, const AttentionTile& b) {
            return work_of(a) > work_of(b);
        });
        items.clear();
        splits.clear();
        merges.clear();
        floats = 0;
        int most = 0;
        for (const AttentionTile& tile : tiles_) {
            const Splits range = splits_of(shape, tile);
            most = std::max(most, range.end - range.begin);
            for (int head = 0; head < shape.kv_heads; ++head) items.push_back({&tile, head});
        }
        if (!may_split || most < 2 || static_cast<int>(items.size()) >= kItemsPerMember * members) return;
        for (const AttentionItem& item : items) {
            merges.push_back({item, floats});
            const Splits range = splits_of(shape, *item.tile);
            for (int split = range.begin; split < range.end; ++split) {
                splits.push_back({item, split, floats});
                floats += split_floats(shape, *item.tile);
            }
        }
    }

    bool is_split() const { return !splits.empty(); }

    std::vector<AttentionItem> items;
    std::vector<SplitItem> splits;
    std::vector<MergeItem> merges;
    int64_t floats = 0;  // of all splits' results

  private:
    static constexpr int kItemsPerMember = 4;

    static int64_t work_of(const AttentionTile& tile) { return int64_t(tile.tokens) * (tile.first_position + tile.tokens); }

    std::vector<AttentionTile> tiles_;
};

}  // namespace headway
