// Where things lie in packed weights and activation rows (drawn in gemm.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gemm.h"
#include "vector.h"

namespace headway {

constexpr int kGroup = 32;          // values of one quantization group
constexpr int kVectorBytes = 64;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline int groups_of(int inputs) { return ceil_div(inputs, kGroup); }

// Panels of a weight: gate and up of paired ones fill a vector each.
inline int panels_of(int outputs, int paired) {
    return paired ? ceil_div(outputs / 2, kLanes) : ceil_div(outputs, HEADWAY_PANEL);
}

// Bytes that 32 k of one panel take.
constexpr int group_bytes(int kind) {
    switch (kind) {
        case HEADWAY_BF16: return 32 * kVectorBytes;
        case HEADWAY_F32: return 64 * kVectorBytes;
        case HEADWAY_INT8:
        case HEADWAY_INT8_MANY: return 16 * kVectorBytes;
        case HEADWAY_Q8_0: return 17 * kVectorBytes;
        case HEADWAY_Q4_0: return 9 * kVectorBytes;
        default: return 10 * kVectorBytes;
    }
}

// Whether a weight's scales are one per output, behind its panel.
constexpr bool has_output_scales(int kind) { return kind == HEADWAY_INT8 || kind == HEADWAY_INT8_MANY; }

inline int64_t panel_bytes(int kind, int inputs) {
    return int64_t(groups_of(inputs)) * group_bytes(kind) + (has_output_scales(kind) ? 2 * kVectorBytes : 0);
}

// One activation row:
//   BF16   | bf16 × K |                                               F32    | f32 × K |
//   INT8   | s8 × K | f32 scale | i32 −128 · Σq |
//   Q8_0, INT8_MANY  | s8 × K | f32 scale × groups | i32 −128 · Σq × groups |       Q4_0: −8 · Σq
//   Q4_1   | s8 × K | f32 scale × groups | f32 scale · Σq × groups |
inline int64_t activation_row_bytes(int kind, int inputs) {
    const int64_t groups = groups_of(inputs), values = groups * kGroup;
    const int64_t used = kind == HEADWAY_F32    ? 4 * values
                         : kind == HEADWAY_BF16 ? 2 * values
                                                : values + 8 * (kind == HEADWAY_INT8 ? 1 : groups);
    // An odd number of lines from row to row, so that rows read side by side do not fall into the same cache sets.
    return (((used + kVectorBytes - 1) / kVectorBytes) | 1) * kVectorBytes;
}

}  // namespace headway
