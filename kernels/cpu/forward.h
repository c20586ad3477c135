// A step's phases in order; step.cpp is the C interface around it.
//
//   for each layer   norm · qkv · [placing] · attention · [merging] · output · norm · gate_up · down
//
// What one member can finish alone is done where it has just been computed: attention and the gated product leave
// their part of the next product's input, and a token that is alone in its sequence (decode) is placed by the item
// that attends for it. In the last layer only rows whose logits are wanted go on after keys and values are written.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention.h"
#include "attention_f32.h"
#include "attention_plan.h"
#include "rows.h"
#include "step.h"
#include "threads.h"

namespace headway {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// Memory aligned to vectors that only ever grows; the contents do not survive growing.
template <class T>
class Buffer {
  public:
    T* fit(int64_t count) {
        if (count > size_) {
            const int64_t bytes = (count * int64_t(sizeof(T)) + 4095) / 4096 * 4096;
            memory_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
            size_ = memory_ ? count : 0;
            if (!memory_) throw std::bad_alloc();
        }
        return memory_.get();
    }
    T* get() const { return memory_.get(); }

  private:
    std::unique_ptr<T, Free> memory_;
    int64_t size_ = 0;
};

// Activations of all rows, shared by both runs of a context.
struct Activations {
    Buffer<float> residual, qkv, mixed, gated;
    Buffer<float> picked;       // residual of the rows whose logits are wanted, in the last layer
    Buffer<float> parts;        // results of attention's splits
    Buffer<uint16_t> queries;   // bf16, or float32 in place of two
    Buffer<uint8_t> inputs;     // of the next product, as its kind wants them
    Buffer<uint8_t> inputs_after;  // of the product after it, written meanwhile
};

// One member's own memory.
struct MemberScratch {
    Buffer<uint8_t> attention;
    Buffer<float> row, logits;
    std::vector<Largest> best;
};

struct PackedToken {
    const int32_t* table;
    int32_t position;
};

// Packed rows [begin, end).
struct RowRange {
    int begin, end;
};

// What goes on after a layer's attention: all packed rows, or the picked ones.
struct Tail {
    const AttentionPlan* attention;
    int rows;
    float* residual;  // [rows, hidden]
};

class Forward final : public Run {
  public:
    Forward(const HeadwayModel& model, Activations& shared, std::vector<MemberScratch>& members);

    // Take a step; nobody works on this run meanwhile.
    void set_up(HeadwayStep& step);

    void work(int member) override;

  private:
    struct Clock;

    void plan_rows();
    void plan_placing();
    void fit_buffers();
    template <class Each>
    void for_weights(Each&& each) const;

    void embed(int row);
    void norm(const float* x, const float* weight, const HeadwayWeight& next, int into, MemberScratch& own);
    void quantize(const HeadwayWeight& next, const float* x, int into);
    bool is_cut(const HeadwayWeight& next, int columns) const;

    void place_all(int layer, int& phase, MemberScratch& own);
    void place(int layer, int row, int kv_head, MemberScratch& own);
    void turn(int layer, int row, int head, MemberScratch& own);
    void keep_head(int layer, int row, int head, const float* turned);
    void attend_all(int layer, const Tail& tail, int& phase, MemberScratch& own);
    void attend_item(int layer, const AttentionItem& item, const AttentionItem* next, MemberScratch& own);
    void prepare_output(int layer, const Tail& tail, const AttentionItem& item);

    void choose(int first, int end, MemberScratch& own);
    void merge_choices();
    void product(int& phase, const HeadwayWeight& weight, const uint8_t* inputs, int rows, float* out, int epilogue);
    void gated_product(int& phase, const HeadwayLayer& layer, int rows);
    template <class Work>
    void for_rows(int& phase, int rows, Work&& work);
    void layer(int index, int& phase, MemberScratch& own, Clock& clock);
    void head(int& phase, int member, Clock& clock);

    KvPools pools(int layer) const;
    Tail tail_of(int layer) const;
    bool is_f32() const { return shape_.element == HEADWAY_ELEMENT_F32; }
    float* residual(int row) const { return shared_.residual.get() + int64_t(row) * model_.hidden; }

    const HeadwayModel& model_;
    const AttentionShape shape_;
    Activations& shared_;
    std::vector<MemberScratch>& members_;
    HeadwayStep* step_ = nullptr;
    const HeadwayLayer* layers_ = nullptr;  // in the form for this step's number of tokens
    int tokens_ = 0;
    int rows_ = 0;
    bool picks_ = false;  // the last layer's rows after attention are fewer than the tokens
    std::vector<PackedToken> packed_;
    std::vector<int32_t> picked_at_;   // [tokens] place among the picked rows, or −1
    AttentionPlan attention_, last_attention_;
    std::vector<RowRange> placing_, last_placing_;  // items of whole blocks, of rows that no attention item places
};

template <class Work>
void Forward::for_rows(int& phase, int rows, Work&& work) {
    const int each = rows <= 8 ? 1 : 4;
    board.phase(phase++, (rows + each - 1) / each, [&](int item) {
        for (int row = item * each; row < std::min(rows, (item + 1) * each); ++row) work(row);
    });
}

}  // namespace headway
