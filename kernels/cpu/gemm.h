// Matrix products with weights that never change:  out[r, n] = epilogue(Σ_k x[r, k] · w[n, k] + bias[n])
//
// Nothing here starts or waits for a thread: every function does a part of the work (rows of
// `headway_quantize_rows`, columns of `headway_gemm_part`) and may run beside others of the same product.
// One output element is always summed in the same order, over k from 0 to K, whatever the number of rows
// and however columns are divided: a row's result is the same alone and in any batch.
//
// Weights lie in panels of 32 outputs, each panel complete for all of K, so that a range of columns is one
// contiguous stream of memory. A panel is two vectors (v = 0, 1) of 16 outputs; L(v) is lane 0 … 15 of one.
//
//   columns of a panel   plain:  v = 0: n, n+1 … n+15          v = 1: n+16 … n+31
//                        paired: v = 0: gate g … g+15          v = 1: up g … g+15      (g = n / 2)
//
//   BF16   per 2 k:   | L(0): (k, k+1) bf16 | L(1): (k, k+1) |                                       128 B
//   F32    per k:    | L(0): k f32 | L(1): k |                                                       128 B
//   INT8   per 4 k:   | L(0): (k … k+3) u8 = w + 128 | L(1) |                                        128 B
//          then per panel  | f32 scale L(0) | L(1) |                                                 128 B
//   INT8_MANY  as INT8; its activations have a scale per 32 k
//   Q8_0   per 32 k:  | 8 × (L(0): 4 k, L(1): 4 k) u8 = w + 128 | f16 scale L(0) | L(1) |     1024 + 64 B
//   Q4_0   per 32 k:  | 4 × (L(0), L(1)) nibbles | f16 scale L(0) | L(1) |                     512 + 64 B
//   Q4_1   per 32 k:  | 4 × (L(0), L(1)) nibbles | f16 scale L(0) | L(1) | f16 min L(0) | L(1) |
//                                                                                             512 + 128 B
//          nibble vector j (j < 4), lane, byte b (b < 4): low half k = 4j + b, high half k = 16 + 4j + b
//
// K is padded to a multiple of 32 and the outputs to one of 32 with zeros; activations are padded alike. (GGUF
// kinds have a K that is one already.)
//
// Weights are unsigned so that activations can be the signed operand of VPDPBUSD, broadcast from memory; what
// the shift by 128 (or 8) adds is taken off again with the sum of the row's (group's) activations.
#pragma once

#include <stdint.h>

enum HeadwayWeightKind { HEADWAY_BF16 = 0, HEADWAY_INT8 = 1, HEADWAY_Q4_0 = 2, HEADWAY_Q4_1 = 3, HEADWAY_Q8_0 = 4, HEADWAY_F32 = 5,
                         HEADWAY_INT8_MANY = 6 };
// INT8: of keys and values only.
enum HeadwayElement { HEADWAY_ELEMENT_F32 = 0, HEADWAY_ELEMENT_BF16 = 1, HEADWAY_ELEMENT_INT8 = 2 };

enum HeadwayEpilogue {
    HEADWAY_STORE = 0,          // out[r, n] = y
    HEADWAY_ADD = 1,            // out[r, n] += y                 (residual)
    HEADWAY_SILU_MUL = 2,       // out[r, n / 2] = silu(gate) · up  (paired weights only)
    HEADWAY_GELU_TANH_MUL = 3,  // out[r, n / 2] = gelu_tanh(gate) · up
};

// Panels are dealt whole: n_begin and n_end of a part are multiples of this, or n_end = outputs.
#define HEADWAY_PANEL 32

struct HeadwayWeight {
    int32_t kind;     // HeadwayWeightKind
    int32_t outputs;  // N; of paired weights gate's and up's together
    int32_t inputs;   // K
    int32_t paired;   // 1: gate and up in turns, 16 columns each
    const uint8_t* buffer;  // headway_packed_bytes() long, aligned to 64 bytes
    const float* bias;      // [outputs] or null; of paired weights gate's, then up's
};

struct HeadwayOutput {
    void* values;      // row-major
    int64_t stride;    // elements from row to row
    int32_t element;   // HeadwayElement
    int32_t epilogue;  // HeadwayEpilogue
};

extern "C" {

// Bytes of the packed buffer.
int64_t headway_packed_bytes(int32_t kind, int32_t outputs, int32_t inputs, int32_t paired);

// Pack source rows [begin, end) of `outputs` into `buffer` (zeroed by the caller). Sources, row-major [end − begin, K]:
// BF16: bfloat16; F32: float32; INT8 and INT8_MANY: int8 with `scales` (f32 per row); Q*: the GGUF file's own blocks, unchanged in value.
// Of paired weights rows [0, outputs / 2) are gate, the rest up. Row ranges may be packed in any order.
void headway_pack_rows(int32_t kind, int32_t outputs, int32_t inputs, int32_t paired, const void* rows,
                       const float* scales, int32_t begin, int32_t end, uint8_t* buffer);

// Row n of a packed weight as float32 [K]: an embedding table needs no second copy.
void headway_unpack_row(const struct HeadwayWeight* weight, int32_t row, float* out);

// Bytes of one activation row for weights of this kind, a multiple of 64; row r lies r times that into its buffer,
// which is aligned to 64.
int64_t headway_activation_row_bytes(int32_t kind, int32_t inputs);

// Rows [begin, end) of x (row-major, `stride` elements apart, f32 or bf16) into the same rows of `activations`:
// rounded to bf16 for BF16 weights; as they are for F32; for INT8 to int8 with one scale per row; for INT8_MANY and Q* with one per 32 values.
void headway_quantize_rows(int32_t kind, const void* x, int32_t element, int64_t stride, int32_t begin, int32_t end,
                           int32_t inputs, void* activations);

// Columns [begin, end) of one row x [inputs] into row `row` of `activations`: multiples of 32, as are the inputs. Not for
// INT8, whose scale is the whole row's.
void headway_quantize_columns(int32_t kind, const float* x, int32_t begin, int32_t end, int32_t row, int32_t inputs,
                              void* activations);

// Columns [n_begin, n_end) of the product for activation rows [0, rows), into rows 0 … of `output`.
void headway_gemm_part(const struct HeadwayWeight* weight, const void* activations, int32_t rows, int32_t n_begin,
                       int32_t n_end, const struct HeadwayOutput* output);
}
