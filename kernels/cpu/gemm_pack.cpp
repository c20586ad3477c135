// From row-major weights (or a GGUF file's blocks) to panels, and one row back. Layouts: gemm.h.
#include <string.h>

#include "gemm_layout.h"

namespace headway {
namespace {

struct Place {
    int panel, vector, lane;
};

Place place_of(int row, int outputs, int paired) {
    if (!paired) return {row / HEADWAY_PANEL, row % HEADWAY_PANEL / kLanes, row % kLanes};
    const int half = outputs / 2, vector = row >= half, column = row - vector * half;
    return {column / kLanes, vector, column % kLanes};
}

// Byte of lane `lane` in vector `vector` of the pair number `pair`.
size_t at(int pair, const Place& place) { return size_t(pair * 2 + place.vector) * kVectorBytes + place.lane * 4; }

constexpr int source_bytes(int kind) {  // of one group of a GGUF file
    return kind == HEADWAY_Q4_0 ? 18 : kind == HEADWAY_Q4_1 ? 20 : 34;
}

void pack_bf16(const uint16_t* row, int inputs, const Place& place, uint8_t* panel) {
    for (int k = 0; k < inputs; k += 2)
        memcpy(panel + at(k / 2, place), row + k, (inputs - k > 1 ? 2 : 1) * sizeof *row);
}

void pack_f32(const float* row, int inputs, const Place& place, uint8_t* panel) {
    for (int k = 0; k < inputs; ++k) memcpy(panel + at(k, place), row + k, sizeof *row);
}

void pack_int8(const int8_t* row, float scale, int inputs, const Place& place, uint8_t* panel) {
    for (int k = 0; k < inputs; ++k) panel[at(k / 4, place) + k % 4] = uint8_t(row[k] + 128);
    memcpy(panel + at(groups_of(inputs) * 8, place), &scale, sizeof scale);
}

void pack_blocks(int kind, const uint8_t* row, int groups, const Place& place, uint8_t* panel) {
    const int pairs = kind == HEADWAY_Q8_0 ? 8 : 4, halves = kind == HEADWAY_Q4_1 ? 2 : 1;
    for (int g = 0; g < groups; ++g, row += source_bytes(kind), panel += group_bytes(kind)) {
        const uint8_t* values = row + 2 * halves;
        for (int j = 0; j < pairs; ++j) {
            uint32_t four;
            memcpy(&four, values + 4 * j, 4);
            if (kind == HEADWAY_Q8_0) four ^= 0x80808080u;  // s8 to u8: + 128
            memcpy(panel + at(j, place), &four, 4);
        }
        uint8_t* scales = panel + 2 * pairs * kVectorBytes + place.vector * 32 + place.lane * 2;
        for (int h = 0; h < halves; ++h) memcpy(scales + h * kVectorBytes, row + 2 * h, 2);
    }
}

float half_at(const uint8_t* bytes) {
    uint16_t half;
    memcpy(&half, bytes, 2);
    return _cvtsh_ss(half);
}

void unpack_blocks(int kind, const uint8_t* panel, int groups, const Place& place, float* out) {
    const int pairs = kind == HEADWAY_Q8_0 ? 8 : 4;
    for (int g = 0; g < groups; ++g, panel += group_bytes(kind), out += kGroup) {
        const uint8_t* scales = panel + 2 * pairs * kVectorBytes + place.vector * 32 + place.lane * 2;
        const float scale = half_at(scales), least = kind == HEADWAY_Q4_1 ? half_at(scales + kVectorBytes) : 0.0f;
        for (int k = 0; k < kGroup; ++k) {
            const uint8_t byte = panel[at(k % (4 * pairs) / 4, place) + k % 4];
            if (kind == HEADWAY_Q8_0) out[k] = scale * float(byte - 128);
            else {
                const int nibble = k < 16 ? byte & 15 : byte >> 4;
                out[k] = kind == HEADWAY_Q4_0 ? scale * float(nibble - 8) : scale * float(nibble) + least;
            }
        }
    }
}

float widen(const uint8_t* bytes) {  // bf16 to f32
    uint16_t high;
    memcpy(&high, bytes, 2);
    const uint32_t bits = uint32_t(high) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

}  // namespace
}  // namespace headway

using namespace headway;

int64_t headway_packed_bytes(int32_t kind, int32_t outputs, int32_t inputs, int32_t paired) {
    return panels_of(outputs, paired) * panel_bytes(kind, inputs);
}

void headway_pack_rows(int32_t kind, int32_t outputs, int32_t inputs, int32_t paired, const void* rows,
                       const float* scales, int32_t begin, int32_t end, uint8_t* buffer) {
    const int groups = groups_of(inputs);
    for (int row = begin; row < end; ++row) {
        const Place place = place_of(row, outputs, paired);
        uint8_t* panel = buffer + place.panel * panel_bytes(kind, inputs);
        const int64_t index = row - begin;
        if (kind == HEADWAY_BF16)
            pack_bf16(static_cast<const uint16_t*>(rows) + index * inputs, inputs, place, panel);
        else if (kind == HEADWAY_F32)
            pack_f32(static_cast<const float*>(rows) + index * inputs, inputs, place, panel);
        else if (has_output_scales(kind))
            pack_int8(static_cast<const int8_t*>(rows) + index * inputs, scales[index], inputs, place, panel);
        else
            pack_blocks(kind, static_cast<const uint8_t*>(rows) + index * groups * source_bytes(kind), groups, place,
                        panel);
    }
}

void headway_unpack_row(const HeadwayWeight* weight, int32_t row, float* out) {
    const int kind = weight->kind, inputs = weight->inputs;
    const Place place = place_of(row, weight->outputs, weight->paired);
    const uint8_t* panel = weight->buffer + place.panel * panel_bytes(kind, inputs);
    if (kind == HEADWAY_BF16) {
        for (int k = 0; k < inputs; ++k) out[k] = widen(panel + at(k / 2, place) + k % 2 * 2);
    } else if (kind == HEADWAY_F32) {
        for (int k = 0; k < inputs; ++k) memcpy(out + k, panel + at(k, place), sizeof *out);
    } else if (has_output_scales(kind)) {
        float scale;
        memcpy(&scale, panel + at(groups_of(inputs) * 8, place), sizeof scale);
        for (int k = 0; k < inputs; ++k) out[k] = scale * float(panel[at(k / 4, place) + k % 4] - 128);
    } else {
        unpack_blocks(kind, panel, groups_of(inputs), place, out);
    }
}
