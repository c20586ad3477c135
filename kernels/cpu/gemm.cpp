// The loops around the micro-kernels: panels outside, so that weights come from memory once; blocks of rows inside,
// while the panel (10 … 100 kB) stays in the core's own caches.
#include "gemm_epilogue.h"
#include "gemm_kernels.h"

namespace headway {
namespace {

constexpr int kRowsPlain = 12;    // rows of a block: what fits the registers
constexpr int kRowsGrouped = 6;
constexpr int64_t kAheadBytes = 8192;  // memory's latency at the speed of one core, twice over

struct Pass {
    const HeadwayWeight& weight;
    const HeadwayOutput& output;
    const uint8_t* panel;
    Ahead ahead;
    int number;  // of the panel
};

template <template <int> class Kernel, int R>
void run_block(const Pass& pass, const uint8_t* first_row, int64_t row_bytes, int row) {
    Rows<R> x;
    for (int r = 0; r < R; ++r) x.row[r] = first_row + r * row_bytes;
    Sums<R> y;
    Kernel<R>::run(pass.panel, pass.ahead, x, groups_of(pass.weight.inputs), y);
    finish(pass.weight, pass.output, row, R, pass.number, y);
}

using Block = void (*)(const Pass&, const uint8_t*, int64_t, int);

// Blocks of 1 … MOST rows; index 0 is not used.
template <template <int> class Kernel, int MOST>
struct Blocks {
    static const Block* table() {
        static const Block blocks[kRowsPlain + 1] = {
            nullptr, at<1>(), at<2>(), at<3>(), at<4>(), at<5>(), at<6>(), at<7>(), at<8>(), at<9>(), at<10>(), at<11>(), at<12>()};
        return blocks;
    }
    template <int R>
    static constexpr Block at() {
        if constexpr (R <= MOST) return run_block<Kernel, R>;
        else return nullptr;
    }
};

bool sums_in_groups(int kind) { return kind != HEADWAY_BF16 && kind != HEADWAY_F32 && kind != HEADWAY_INT8; }

const Block* blocks_of(int kind) {
    switch (kind) {
        case HEADWAY_BF16: return Blocks<Bf16Kernel, kRowsPlain>::table();
        case HEADWAY_F32: return Blocks<F32Kernel, kRowsPlain>::table();
        case HEADWAY_INT8: return Blocks<Int8Kernel, kRowsPlain>::table();
        case HEADWAY_INT8_MANY: return Blocks<Int8ManyKernel, kRowsGrouped>::table();
        case HEADWAY_Q4_0: return Blocks<Q40Kernel, kRowsGrouped>::table();
        case HEADWAY_Q4_1: return Blocks<Q41Kernel, kRowsGrouped>::table();
        default: return Blocks<Q80Kernel, kRowsGrouped>::table();
    }
}

}  // namespace
}  // namespace headway

using namespace headway;

void headway_gemm_part(const HeadwayWeight* weight, const void* activations, int32_t rows, int32_t n_begin,
                       int32_t n_end, const HeadwayOutput* output) {
    if (rows <= 0) return;
    const Block* blocks = blocks_of(weight->kind);
    const int most = sums_in_groups(weight->kind) ? kRowsGrouped : kRowsPlain;
    const int count = ceil_div(rows, most);
    const int64_t row_bytes = activation_row_bytes(weight->kind, weight->inputs);
    const int64_t bytes = panel_bytes(weight->kind, weight->inputs);
    const int end = ceil_div(n_end, HEADWAY_PANEL), groups = groups_of(weight->inputs);
    const int lines = ceil_div(group_bytes(weight->kind) / kVectorBytes, count);
    for (int number = n_begin / HEADWAY_PANEL; number < end; ++number) {
        const uint8_t* panel = weight->buffer + number * bytes;
        for (int block = 0, row = 0; block < count; ++block) {
            // Blocks as even as can be: 8 rows run as 4 + 4, not 6 + 2.
            const int height = (rows - row) / (count - block);
            const uint8_t* first = static_cast<const uint8_t*>(activations) + row * row_bytes;
            // One block: a fixed distance, which also covers the first panel. More: each its part of the next panel.
            const bool is_only = count == 1, has_next = is_only || number + 1 < end;
            const int64_t distance = is_only ? kAheadBytes : bytes + int64_t(block) * groups * lines * kVectorBytes;
            const Ahead ahead{panel + distance, has_next ? lines : 0};
            const Pass pass{*weight, *output, panel, ahead, number};
            blocks[height](pass, first, row_bytes, row);
            row += height;
        }
    }
}
