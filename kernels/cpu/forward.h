// A step's phases in order; step.cpp is the C interface around it.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "attention.h"
#include "attention_f32.h"
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
    Buffer<uint16_t> queries;     // bf16, or float32 in place of two
    Buffer<uint8_t> inputs;  // of the next product, as its kind wants them
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

class Forward final : public Run {
  public:
    Forward(const HeadwayModel& model, Activations& shared, std::vector<MemberScratch>& members);

    // Take a step; nobody works on this run meanwhile.
    void set_up(HeadwayStep& step);

    void work(int member) override;

  private:
    struct Clock;

    void embed(int item, MemberScratch& own);
    void norm(const float* weight, const HeadwayWeight& next, int row, int into, MemberScratch& own);
    void place_heads(int layer, int row, MemberScratch& own);
    void attend_tile(int layer, int item, MemberScratch& own);
    void quantize(const HeadwayWeight& next, const float* from, int row);
    void choose(int first, int end, MemberScratch& own);
    void merge_choices();
    void product(int& phase, const HeadwayWeight& weight, int rows, float* out, int64_t stride, int epilogue);
    template <class Work>
    void for_rows(int& phase, int rows, Work&& work);
    void layer(int index, int& phase, MemberScratch& own, Clock& clock);
    void head(int& phase, int member, Clock& clock);

    void keep_head(int layer, int row, int head, const float* turned);
    uint16_t* pool(int layer, int which) const;
    bool is_f32() const { return model_.kv_element == HEADWAY_ELEMENT_F32; }

    const HeadwayModel& model_;
    const AttentionShape shape_;
    Activations& shared_;
    std::vector<MemberScratch>& members_;
    HeadwayStep* step_ = nullptr;
    int tokens_ = 0;
    int rows_ = 0;
    std::vector<PackedToken> packed_;
    std::vector<AttentionTile> tiles_;
};

}  // namespace headway
