// One call per engine step: the Llama family's whole forward pass over packed tokens, on a team of threads.
//
//   x ← x + output(attention(norm(x)));  x ← x + down(act(gate(norm(x))) · up(norm(x)));  logits = head(norm(x))
//
// The residual x stays in float32; products take their activations as their weights' kind wants them; keys, values
// and queries are bfloat16, or float32 (kv_element). A row's result depends on nothing but its own tokens: not on the batch, the chunks or the
// number of threads.
#pragma once

#include <stdint.h>

#include "gemm.h"

struct HeadwayLayer {
    struct HeadwayWeight qkv, output, gate_up, down;  // q, k, v heads one after another; gate and up paired
    const float *attention_norm, *query_norm, *key_norm, *mlp_norm;  // query_norm and key_norm may be null
};

struct HeadwayModel {
    int32_t layers, hidden, intermediate, vocab;
    int32_t query_heads, kv_heads, head_dim, block_size;
    int32_t window;      // 0: none
    int32_t activation;  // HEADWAY_SILU_MUL or HEADWAY_GELU_TANH_MUL
    int32_t kv_element;  // HeadwayElement of queries and pools
    float norm_eps, scale;
    const struct HeadwayLayer* layer;
    const struct HeadwayLayer* layer_of_many;  // the same for steps of `many` tokens or more, in another form; or null
    int32_t many;
    struct HeadwayWeight head;
    struct HeadwayWeight embedding;    // kind and buffer; read row by row
    const float* final_norm;
    const float *cosines, *sines;      // [positions, head_dim / 2]
    void* pools;                       // [layers, 2, blocks, kv_heads, block_size · head_dim] (attention.h, _f32.h)
    int64_t blocks;
};

struct HeadwayStep {
    int32_t sequences, tokens, rows;   // rows: of the packed tokens, those whose logits are wanted
    int32_t kept_rows;                 // the first of them whose logits are kept
    const int32_t* token_ids;          // [tokens]
    const int32_t* starts;             // [sequences] position of each one's first token
    const int32_t* counts;             // [sequences] tokens of each
    const int32_t* const* tables;      // [sequences] block tables
    const int32_t* logit_rows;         // [rows]
    const uint16_t* const* masks;      // [rows] what each may choose: bit t % 16 of word t / 16 for token t; null: anything
    float* logits;                     // [kept_rows, vocab], −∞ where the mask says no
    int32_t* most_likely;              // [rows], the first of equals that it may choose
    int64_t nanoseconds[4];            // out: products, attention, head, all
};

extern "C" {

// A model with its team; `cores` [threads] or null. Null when memory is lacking. What `model` points to must outlive it.
void* headway_open(const struct HeadwayModel* model, int32_t threads, const int32_t* cores);

void headway_close(void* context);

// A step follows within microseconds: the threads may wake up.
void headway_wake(void* context);

// Returns 0, or 1 when memory is lacking (nothing ran then).
int32_t headway_step(void* context, struct HeadwayStep* step);
}
