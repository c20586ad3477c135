#include "forward.h"

#include <x86intrin.h>

#include <algorithm>

namespace headway {
namespace {

constexpr int kPhasesPerLayer = 10;
constexpr int kPhasesAround = 4;      // embedding, last norm, head, merged choices
constexpr int kPartsPerMember = 8;    // of a product: enough to share evenly when a core is taken away
constexpr int kHeadColumns = 8 * HEADWAY_PANEL;  // 32 rows of such logits stay in the L1 cache
constexpr int kRowsPerItem = 4;

}  // namespace

// Where the time of the calling member goes, in ticks of the time stamp counter.
struct Forward::Clock {
    explicit Clock(bool is_caller) : counts(is_caller), last(__rdtsc()) {}
    void lap(uint64_t& into) {
        if (!counts) return;
        const uint64_t now = __rdtsc();
        into += now - last;
        last = now;
    }
    const bool counts;
    uint64_t last, products = 0, attention = 0, head = 0, other = 0;
};

Forward::Forward(const HeadwayModel& model, Activations& shared, std::vector<MemberScratch>& members)
    : model_(model),
      shape_{model.query_heads, model.kv_heads, model.head_dim, model.block_size, model.window, model.scale},
      shared_(shared),
      members_(members) {}

void Forward::set_up(HeadwayStep& step) {
    step_ = &step;
    tokens_ = step.tokens;
    rows_ = step.rows;
    packed_.clear();
    tiles_.clear();
    const int most = tile_tokens(shape_);
    for (int s = 0; s < step.sequences; ++s) {
        const int first_row = static_cast<int>(packed_.size());
        for (int i = 0; i < step.counts[s]; ++i) packed_.push_back({step.tables[s], step.starts[s] + i});
        for (int i = 0; i < step.counts[s]; i += most) {
            const int count = std::min(most, step.counts[s] - i);
            tiles_.push_back({step.tables[s], first_row + i, count, step.starts[s] + i});
        }
    }
    // The longest first: what is dealt last should be short.
    std::stable_sort(tiles_.begin(), tiles_.end(), [](const AttentionTile& a, const AttentionTile& b) {
        return int64_t(a.tokens) * (a.first_position + a.tokens) > int64_t(b.tokens) * (b.first_position + b.tokens);
    });
    const int64_t heads = model_.query_heads + 2 * model_.kv_heads;
    const int64_t queries = int64_t(model_.query_heads) * model_.head_dim;
    shared_.residual.fit(int64_t(tokens_) * model_.hidden);
    shared_.qkv.fit(tokens_ * heads * model_.head_dim);
    shared_.queries.fit(tokens_ * queries * (is_f32() ? 2 : 1));
    shared_.mixed.fit(tokens_ * queries);
    shared_.gated.fit(int64_t(tokens_) * model_.intermediate);
    int64_t bytes = headway_activation_row_bytes(model_.head.kind, model_.hidden);
    for (int i = 0; i < model_.layers; ++i) {
        const HeadwayLayer& one = model_.layer[i];
        for (const HeadwayWeight* weight : {&one.qkv, &one.output, &one.gate_up, &one.down}) {
            bytes = std::max(bytes, headway_activation_row_bytes(weight->kind, weight->inputs));
        }
    }
    shared_.inputs.fit(bytes * tokens_);
    for (MemberScratch& own : members_) {
        own.attention.fit(is_f32() ? attention_f32_scratch_bytes(shape_) : attention_scratch_bytes(shape_));
        own.row.fit(std::max<int64_t>({model_.hidden, heads * model_.head_dim}));
        own.logits.fit(int64_t(rows_) * kHeadColumns);
        own.best.assign(rows_, Largest());
    }
    board.open(kPhasesPerLayer * model_.layers + kPhasesAround);
}

uint16_t* Forward::pool(int layer, int which) const {
    const int64_t size = model_.blocks * model_.kv_heads * model_.block_size * model_.head_dim;
    return static_cast<uint16_t*>(model_.pools) + (2 * int64_t(layer) + which) * size * (is_f32() ? 2 : 1);
}

template <class Work>
void Forward::for_rows(int& phase, int rows, Work&& work) {
    const int each = rows <= 8 ? 1 : kRowsPerItem;
    board.phase(phase++, (rows + each - 1) / each, [&](int item) {
        for (int row = item * each; row < std::min(rows, (item + 1) * each); ++row) work(row);
    });
}

void Forward::product(int& phase, const HeadwayWeight& weight, int rows, float* out, int64_t stride, int epilogue) {
    const int panels = (weight.outputs + HEADWAY_PANEL - 1) / HEADWAY_PANEL;
    const int each = std::max(1, panels / (kPartsPerMember * static_cast<int>(members_.size())));
    const HeadwayOutput output{out, stride, HEADWAY_ELEMENT_F32, epilogue};
    board.phase(phase++, (panels + each - 1) / each, [&](int item) {
        const int begin = item * each * HEADWAY_PANEL, end = std::min(weight.outputs, begin + each * HEADWAY_PANEL);
        headway_gemm_part(&weight, shared_.inputs.get(), rows, begin, end, &output);
    });
}

void Forward::embed(int row, MemberScratch&) {
    headway_unpack_row(&model_.embedding, step_->token_ids[row], shared_.residual.get() + int64_t(row) * model_.hidden);
}

void Forward::norm(const float* weight, const HeadwayWeight& next, int row, int into, MemberScratch& own) {
    norm_row(shared_.residual.get() + int64_t(row) * model_.hidden, weight, model_.norm_eps, model_.hidden, own.row.get());
    headway_quantize_rows(next.kind, own.row.get(), HEADWAY_ELEMENT_F32, 0, into, into + 1, model_.hidden,
                          shared_.inputs.get());
}

void Forward::quantize(const HeadwayWeight& next, const float* from, int row) {
    headway_quantize_rows(next.kind, from, HEADWAY_ELEMENT_F32, next.inputs, row, row + 1, next.inputs,
                          shared_.inputs.get());
}

// Norm and rotate the heads of one token; queries stay, its key and value go to their block.
void Forward::place_heads(int layer, int row, MemberScratch& own) {
    const HeadwayLayer& one = model_.layer[layer];
    const int width = model_.head_dim, queries = model_.query_heads, keys = model_.kv_heads;
    const PackedToken& token = packed_[row];
    const float* heads = shared_.qkv.get() + int64_t(row) * (queries + 2 * keys) * width;
    const float* cosines = model_.cosines + int64_t(token.position) * (width / 2);
    const float* sines = model_.sines + int64_t(token.position) * (width / 2);
    for (int head = 0; head < queries + keys; ++head) {
        const float* norm = head < queries ? one.query_norm : one.key_norm;
        const float* from = heads + head * width;
        float* turned = own.row.get();
        if (norm != nullptr) {
            norm_row(from, norm, model_.norm_eps, width, turned);
            from = turned;
        }
        rotate_row(from, cosines, sines, width, turned);
        keep_head(layer, row, head, turned);
    }
}

void Forward::keep_head(int layer, int row, int head, const float* turned) {
    const int width = model_.head_dim, queries = model_.query_heads, keys = model_.kv_heads;
    const PackedToken& token = packed_[row];
    const float* value = shared_.qkv.get() + (int64_t(row) * (queries + 2 * keys) + head + keys) * width;
    const int64_t query = (int64_t(row) * queries + head) * width;
    if (head < queries && is_f32()) {
        std::memcpy(reinterpret_cast<float*>(shared_.queries.get()) + query, turned, sizeof(float) * width);
    } else if (head < queries) {
        round_row(turned, width, shared_.queries.get() + query);
    } else if (is_f32()) {
        write_kv_f32(shape_, token.table, token.position, head - queries, turned, value,
                     reinterpret_cast<float*>(pool(layer, 0)), reinterpret_cast<float*>(pool(layer, 1)));
    } else {
        write_kv(shape_, token.table, token.position, head - queries, turned, value, pool(layer, 0), pool(layer, 1));
    }
}

void Forward::attend_tile(int layer, int item, MemberScratch& own) {
    const AttentionTile& tile = tiles_[item / model_.kv_heads];
    if (is_f32()) {
        return attend_f32(shape_, tile, item % model_.kv_heads, reinterpret_cast<float*>(shared_.queries.get()),
                          reinterpret_cast<float*>(pool(layer, 0)), reinterpret_cast<float*>(pool(layer, 1)),
                          shared_.mixed.get(), own.attention.get());
    }
    attend(shape_, tile, item % model_.kv_heads, shared_.queries.get(), pool(layer, 0), pool(layer, 1),
           shared_.mixed.get(), own.attention.get());
}

void Forward::layer(int index, int& phase, MemberScratch& own, Clock& clock) {
    const HeadwayLayer& one = model_.layer[index];
    const int64_t width = int64_t(model_.query_heads + 2 * model_.kv_heads) * model_.head_dim;
    for_rows(phase, tokens_, [&](int row) { norm(one.attention_norm, one.qkv, row, row, own); });
    clock.lap(clock.other);
    product(phase, one.qkv, tokens_, shared_.qkv.get(), width, HEADWAY_STORE);
    clock.lap(clock.products);
    for_rows(phase, tokens_, [&](int row) { place_heads(index, row, own); });
    clock.lap(clock.other);
    board.phase(phase++, static_cast<int>(tiles_.size()) * model_.kv_heads, [&](int item) { attend_tile(index, item, own); });
    clock.lap(clock.attention);
    for_rows(phase, tokens_, [&](int row) { quantize(one.output, shared_.mixed.get(), row); });
    clock.lap(clock.other);
    product(phase, one.output, tokens_, shared_.residual.get(), model_.hidden, HEADWAY_ADD);
    clock.lap(clock.products);
    for_rows(phase, tokens_, [&](int row) { norm(one.mlp_norm, one.gate_up, row, row, own); });
    clock.lap(clock.other);
    product(phase, one.gate_up, tokens_, shared_.gated.get(), model_.intermediate, model_.activation);
    clock.lap(clock.products);
    for_rows(phase, tokens_, [&](int row) { quantize(one.down, shared_.gated.get(), row); });
    clock.lap(clock.other);
    product(phase, one.down, tokens_, shared_.residual.get(), model_.hidden, HEADWAY_ADD);
    clock.lap(clock.products);
}

// Logits of columns [first, end) in memory of our own, long enough to find the largest and copy what is kept.
void Forward::choose(int first, int end, MemberScratch& own) {
    float* logits = own.logits.get();
    // A part writes to columns n_begin … of its output.
    const HeadwayOutput output{logits - first, kHeadColumns, HEADWAY_ELEMENT_F32, HEADWAY_STORE};
    headway_gemm_part(&model_.head, shared_.inputs.get(), rows_, first, end, &output);
    for (int row = 0; row < rows_; ++row) {
        const float* mine = logits + int64_t(row) * kHeadColumns;
        largest_of(mine, end - first, first, own.best[row]);
        if (row < step_->kept_rows) {
            std::memcpy(step_->logits + int64_t(row) * model_.vocab + first, mine, sizeof(float) * (end - first));
        }
    }
}

void Forward::head(int& phase, int member, Clock& clock) {
    if (rows_ == 0) return;
    MemberScratch& own = members_[member];
    for_rows(phase, rows_, [&](int row) { norm(model_.final_norm, model_.head, step_->logit_rows[row], row, own); });
    board.phase(phase++, (model_.vocab + kHeadColumns - 1) / kHeadColumns, [&](int item) {
        choose(item * kHeadColumns, std::min(model_.vocab, (item + 1) * kHeadColumns), own);
    });
    board.phase(phase++, 1, [&](int) { merge_choices(); });
    clock.lap(clock.head);
}

void Forward::merge_choices() {
    for (int row = 0; row < rows_; ++row) {
        Largest best = members_[0].best[row];
        for (const MemberScratch& other : members_) best.take(other.best[row].value, other.best[row].index);
        step_->most_likely[row] = best.index;
    }
}

void Forward::work(int member) {
    MemberScratch& own = members_[member];
    Clock clock(member == 0);
    int phase = 0;
    for_rows(phase, tokens_, [&](int row) { embed(row, own); });
    for (int index = 0; index < model_.layers; ++index) layer(index, phase, own, clock);
    head(phase, member, clock);
    if (member == 0) {
        step_->nanoseconds[0] = static_cast<int64_t>(clock.products);
        step_->nanoseconds[1] = static_cast<int64_t>(clock.attention);
        step_->nanoseconds[2] = static_cast<int64_t>(clock.head);
        step_->nanoseconds[3] = static_cast<int64_t>(clock.products + clock.attention + clock.head + clock.other);
    }
}

}  // namespace headway
