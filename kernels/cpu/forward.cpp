#include "forward.h"

#include <x86intrin.h>

#include <algorithm>

namespace headway {
namespace {

constexpr int kPhasesPerLayer = 12;
constexpr int kPhasesAround = 4;      // embedding, last norm, head, merged choices
constexpr int kPartsPerMember = 8;    // of a product: enough to share evenly when a core is taken away
constexpr int kHeadColumns = 8 * HEADWAY_PANEL;  // 32 rows of such logits stay in the L1 cache

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
      shape_{model.query_heads, model.kv_heads, model.head_dim, model.block_size, model.window, model.scale, model.kv_element},
      shared_(shared),
      members_(members) {}

void Forward::set_up(HeadwayStep& step) {
    step_ = &step;
    tokens_ = step.tokens;
    rows_ = step.rows;
    layers_ = model_.layer_of_many != nullptr && tokens_ >= model_.many ? model_.layer_of_many : model_.layer;
    plan_rows();
    plan_placing();
    fit_buffers();
    board.open(kPhasesPerLayer * model_.layers + kPhasesAround);
}

// Tokens, attention's tiles, and those of the rows that the last layer goes on with.
void Forward::plan_rows() {
    packed_.clear();
    attention_.clear();
    last_attention_.clear();
    const int most = tile_tokens(shape_);
    for (int s = 0; s < step_->sequences; ++s) {
        const int first_row = static_cast<int>(packed_.size()), count = step_->counts[s];
        for (int i = 0; i < count; ++i) packed_.push_back({step_->tables[s], step_->starts[s] + i});
        for (int i = 0; i < count; i += most) {
            attention_.add({step_->tables[s], first_row + i, std::min(most, count - i), step_->starts[s] + i, count == 1});
        }
    }
    attention_.finish(shape_, static_cast<int>(members_.size()), !is_f32());
    picked_at_.assign(tokens_, -1);
    picks_ = rows_ < tokens_;
    for (int i = 0; i < rows_ && picks_; ++i) {
        const int row = step_->logit_rows[i];
        picks_ = picked_at_[row] < 0;  // a row that is wanted twice: all go on
        picked_at_[row] = i;
        last_attention_.add({packed_[row].table, row, 1, packed_[row].position, false});
    }
    if (picks_) last_attention_.finish(shape_, static_cast<int>(members_.size()), !is_f32());
}

// Rows that no item of attention places, in items of whole blocks: a block's lines belong to one member at a time.
void Forward::plan_placing() {
    placing_.clear();
    last_placing_.clear();
    int row = 0;
    for (int s = 0; s < step_->sequences; ++s) {
        const int end = row + step_->counts[s];
        while (row < end) {
            const int left_in_block = model_.block_size - packed_[row].position % model_.block_size;
            const RowRange range{row, std::min(end, row + left_in_block)};
            if (step_->counts[s] > 1 || attention_.is_split()) placing_.push_back(range);
            last_placing_.push_back(range);
            row = range.end;
        }
    }
    if (!picks_) last_placing_ = placing_;
}

template <class Each>
void Forward::for_weights(Each&& each) const {
    each(model_.head);
    for (int i = 0; i < model_.layers; ++i) {
        const HeadwayLayer& one = layers_[i];
        for (const HeadwayWeight* weight : {&one.qkv, &one.output, &one.gate_up, &one.down}) each(*weight);
    }
}

void Forward::fit_buffers() {
    const int64_t heads = model_.query_heads + 2 * model_.kv_heads;
    const int64_t queries = int64_t(model_.query_heads) * model_.head_dim;
    shared_.residual.fit(int64_t(tokens_) * model_.hidden);
    shared_.picked.fit(int64_t(rows_) * model_.hidden);
    shared_.qkv.fit(tokens_ * heads * model_.head_dim);
    shared_.queries.fit(tokens_ * queries * (is_f32() ? 2 : 1));
    shared_.mixed.fit(tokens_ * queries);
    shared_.gated.fit(int64_t(tokens_) * model_.intermediate);
    shared_.parts.fit(std::max(attention_.floats, last_attention_.floats));
    int64_t bytes = 0;
    for_weights([&](const HeadwayWeight& weight) {
        bytes = std::max(bytes, headway_activation_row_bytes(weight.kind, weight.inputs));
    });
    shared_.inputs.fit(bytes * tokens_);
    shared_.inputs_after.fit(bytes * tokens_);
    for (MemberScratch& own : members_) {
        own.attention.fit(is_f32() ? attention_f32_scratch_bytes(shape_) : attention_scratch_bytes(shape_));
        own.row.fit(std::max<int64_t>({model_.hidden, heads * model_.head_dim}));
        own.logits.fit(int64_t(rows_) * kHeadColumns);
        own.best.assign(rows_, Largest());
        for (int row = 0; row < rows_; ++row) own.best[row].index = first_allowed(step_->masks[row], model_.vocab);
    }
}

void Forward::product(int& phase, const HeadwayWeight& weight, const uint8_t* inputs, int rows, float* out, int epilogue) {
    const int panels = (weight.outputs + HEADWAY_PANEL - 1) / HEADWAY_PANEL;
    const int each = std::max(1, panels / (kPartsPerMember * static_cast<int>(members_.size())));
    const HeadwayOutput output{out, weight.outputs, HEADWAY_ELEMENT_F32, epilogue};
    board.phase(phase++, (panels + each - 1) / each, [&](int item) {
        const int begin = item * each * HEADWAY_PANEL, end = std::min(weight.outputs, begin + each * HEADWAY_PANEL);
        headway_gemm_part(&weight, inputs, rows, begin, end, &output);
    });
}

// act(gate) · up, and its part of what the product after it takes in.
void Forward::gated_product(int& phase, const HeadwayLayer& layer, int rows) {
    const int width = model_.intermediate, panel = HEADWAY_PANEL / 2;  // columns of one panel's result
    const int panels = (width + panel - 1) / panel;
    // Two panels fill a group of the next product's input.
    const int each = std::max(1, panels / (kPartsPerMember * static_cast<int>(members_.size())) / 2) * 2;
    const HeadwayOutput output{shared_.gated.get(), width, HEADWAY_ELEMENT_F32, model_.activation};
    const bool cut = is_cut(layer.down, 2 * panel);
    board.phase(phase++, (panels + each - 1) / each, [&](int item) {
        const int begin = item * each * panel, end = std::min(width, begin + each * panel);
        headway_gemm_part(&layer.gate_up, shared_.inputs.get(), rows, 2 * begin, 2 * end, &output);
        for (int row = 0; cut && row < rows; ++row) {
            headway_quantize_columns(layer.down.kind, shared_.gated.get() + int64_t(row) * width, begin, end, row, width,
                                     shared_.inputs_after.get());
        }
    });
    if (!cut) {
        for_rows(phase, rows, [&](int row) {
            headway_quantize_rows(layer.down.kind, shared_.gated.get(), HEADWAY_ELEMENT_F32, width, row, row + 1, width,
                                  shared_.inputs_after.get());
        });
    }
}

// Whether parts of `columns` values of a row can be prepared for a product one by one.
bool Forward::is_cut(const HeadwayWeight& next, int columns) const {
    return next.kind != HEADWAY_INT8 && columns % 32 == 0 && next.inputs % 32 == 0;
}

void Forward::embed(int row) { headway_unpack_row(&model_.embedding, step_->token_ids[row], residual(row)); }

void Forward::norm(const float* x, const float* weight, const HeadwayWeight& next, int into, MemberScratch& own) {
    norm_row(x, weight, model_.norm_eps, model_.hidden, own.row.get());
    quantize(next, own.row.get(), into);
}

void Forward::quantize(const HeadwayWeight& next, const float* x, int into) {
    headway_quantize_rows(next.kind, x, HEADWAY_ELEMENT_F32, 0, into, into + 1, next.inputs, shared_.inputs.get());
}

void Forward::layer(int index, int& phase, MemberScratch& own, Clock& clock) {
    const HeadwayLayer& one = layers_[index];
    const Tail tail = tail_of(index);
    const uint8_t *inputs = shared_.inputs.get(), *inputs_after = shared_.inputs_after.get();
    for_rows(phase, tokens_, [&](int row) { norm(residual(row), one.attention_norm, one.qkv, row, own); });
    clock.lap(clock.other);
    product(phase, one.qkv, inputs, tokens_, shared_.qkv.get(), HEADWAY_STORE);
    clock.lap(clock.products);
    place_all(index, phase, own);
    clock.lap(clock.other);
    if (tail.rows == 0) return;
    attend_all(index, tail, phase, own);
    clock.lap(clock.attention);
    product(phase, one.output, inputs, tail.rows, tail.residual, HEADWAY_ADD);
    clock.lap(clock.products);
    for_rows(phase, tail.rows, [&](int row) {
        norm(tail.residual + int64_t(row) * model_.hidden, one.mlp_norm, one.gate_up, row, own);
    });
    clock.lap(clock.other);
    gated_product(phase, one, tail.rows);
    product(phase, one.down, inputs_after, tail.rows, tail.residual, HEADWAY_ADD);
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
        const uint16_t* mask = step_->masks[row];
        if (row < step_->kept_rows) {
            copy_allowed(mine, end - first, first, mask, step_->logits + int64_t(row) * model_.vocab + first);
        }
        largest_of(mine, end - first, first, mask, own.best[row]);
    }
}

void Forward::head(int& phase, int member, Clock& clock) {
    if (rows_ == 0) return;
    MemberScratch& own = members_[member];
    const Tail tail = tail_of(model_.layers - 1);
    for_rows(phase, rows_, [&](int row) {
        const float* x = tail.residual + int64_t(picks_ ? row : step_->logit_rows[row]) * model_.hidden;
        norm(x, model_.final_norm, model_.head, row, own);
    });
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
    for_rows(phase, tokens_, [&](int row) { embed(row); });
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
