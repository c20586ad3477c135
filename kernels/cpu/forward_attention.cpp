// The phases of a layer between the products: heads are turned and placed, then queries attend.
#include <algorithm>

#include "forward.h"

namespace headway {

KvPools Forward::pools(int layer) const {
    const int64_t size = model_.blocks * model_.kv_heads * kv_tile_bytes(shape_);
    uint8_t* keys = static_cast<uint8_t*>(model_.pools) + 2 * int64_t(layer) * size;
    return {keys, keys + size};
}

Tail Forward::tail_of(int layer) const {
    const bool picks = picks_ && layer + 1 == model_.layers;
    return {picks ? &last_attention_ : &attention_, picks ? rows_ : tokens_,
            picks ? shared_.picked.get() : shared_.residual.get()};
}

void Forward::place_all(int layer, int& phase, MemberScratch& own) {
    const std::vector<RowRange>& placing = layer + 1 == model_.layers ? last_placing_ : placing_;
    if (placing.empty()) return;
    board.phase(phase++, static_cast<int>(placing.size()), [&](int item) {
        for (int row = placing[item].begin; row < placing[item].end; ++row) {
            for (int head = 0; head < model_.kv_heads; ++head) place(layer, row, head, own);
        }
    });
}

// Norm and rotate one kv head of a token and its queries; these stay, key and value go to their block.
void Forward::place(int layer, int row, int kv_head, MemberScratch& own) {
    const int group = model_.query_heads / model_.kv_heads;
    for (int query = 0; query < group; ++query) turn(layer, row, kv_head * group + query, own);
    turn(layer, row, model_.query_heads + kv_head, own);
}

void Forward::turn(int layer, int row, int head, MemberScratch& own) {
    const HeadwayLayer& one = layers_[layer];
    const int width = model_.head_dim;
    const int64_t angle = int64_t(packed_[row].position) * (width / 2);
    const float* norm = head < model_.query_heads ? one.query_norm : one.key_norm;
    const float* from = shared_.qkv.get() + (int64_t(row) * (model_.query_heads + 2 * model_.kv_heads) + head) * width;
    float* turned = own.row.get();
    if (norm != nullptr) {
        norm_row(from, norm, model_.norm_eps, width, turned);
        from = turned;
    }
    rotate_row(from, model_.cosines + angle, model_.sines + angle, width, turned);
    keep_head(layer, row, head, turned);
}

void Forward::keep_head(int layer, int row, int head, const float* turned) {
    const int width = model_.head_dim, queries = model_.query_heads, keys = model_.kv_heads;
    const PackedToken& token = packed_[row];
    const float* value = shared_.qkv.get() + (int64_t(row) * (queries + 2 * keys) + head + keys) * width;
    const int64_t query = (int64_t(row) * queries + head) * width;
    const KvPools pool = pools(layer);
    if (head < queries && is_f32()) {
        std::memcpy(reinterpret_cast<float*>(shared_.queries.get()) + query, turned, sizeof(float) * width);
    } else if (head < queries) {
        round_row(turned, width, shared_.queries.get() + query);
    } else if (is_f32()) {
        write_kv_f32(shape_, token.table, token.position, head - queries, turned, value,
                     reinterpret_cast<float*>(pool.keys), reinterpret_cast<float*>(pool.values));
    } else {
        write_kv(shape_, token.table, token.position, head - queries, turned, value, pool);
    }
}

void Forward::attend_all(int layer, const Tail& tail, int& phase, MemberScratch& own) {
    const AttentionPlan& plan = *tail.attention;
    if (plan.is_split()) {
        board.phase(phase++, static_cast<int>(plan.splits.size()), [&](int i) {
            const SplitItem& one = plan.splits[i];
            attend_split(shape_, one.item, one.split, shared_.queries.get(), pools(layer), shared_.parts.get() + one.part,
                         own.attention.get());
        });
        board.phase(phase++, static_cast<int>(plan.merges.size()), [&](int i) {
            const MergeItem& one = plan.merges[i];
            merge_splits(shape_, one.item, shared_.parts.get() + one.parts, shared_.mixed.get(), own.attention.get());
            prepare_output(layer, tail, one.item);
        });
    } else {
        board.phase_ahead(phase++, static_cast<int>(plan.items.size()), [&](int i, int next) {
            attend_item(layer, plan.items[i], next < 0 ? nullptr : &plan.items[next], own);
            prepare_output(layer, tail, plan.items[i]);
        });
    }
    const HeadwayWeight& output = layers_[layer].output;
    if (is_cut(output, model_.query_heads / model_.kv_heads * model_.head_dim)) return;
    for_rows(phase, tail.rows, [&](int row) {
        const int packed = picks_ && layer + 1 == model_.layers ? step_->logit_rows[row] : row;
        quantize(output, shared_.mixed.get() + int64_t(packed) * output.inputs, row);
    });
}

void Forward::attend_item(int layer, const AttentionItem& item, const AttentionItem* next, MemberScratch& own) {
    const KvPools pool = pools(layer);
    if (item.tile->is_alone) place(layer, item.tile->first_row, item.kv_head, own);
    if (is_f32()) {
        attend_f32(shape_, *item.tile, item.kv_head, reinterpret_cast<const float*>(shared_.queries.get()),
                   reinterpret_cast<const float*>(pool.keys), reinterpret_cast<const float*>(pool.values),
                   shared_.mixed.get(), own.attention.get());
    } else {
        attend(shape_, item, next, shared_.queries.get(), pool, shared_.mixed.get(), own.attention.get());
    }
}

// These heads' part of the output product's input; and a picked row's residual, which that product adds to.
void Forward::prepare_output(int layer, const Tail& tail, const AttentionItem& item) {
    const HeadwayWeight& output = layers_[layer].output;
    const int columns = model_.query_heads / model_.kv_heads * model_.head_dim;
    const bool picks = tail.attention == &last_attention_;
    for (int token = 0; token < item.tile->tokens; ++token) {
        const int packed = item.tile->first_row + token, row = picks ? picked_at_[packed] : packed;
        if (picks && item.kv_head == 0) {
            std::copy_n(residual(packed), model_.hidden, tail.residual + int64_t(row) * model_.hidden);
        }
        if (is_cut(output, columns)) {
            const int begin = item.kv_head * columns;
            headway_quantize_columns(output.kind, shared_.mixed.get() + int64_t(packed) * output.inputs, begin,
                                     begin + columns, row, output.inputs, shared_.inputs.get());
        }
    }
}

}  // namespace headway
