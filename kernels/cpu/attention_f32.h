// The same attention with queries, keys and values in float32: for `--dtype float32`, made to be exact before fast.
//
// Keys lie as [head_dim][block_size] in their block, values as [block_size][head_dim]. The order of sums is fixed by
// absolute positions alone: within a key over the head's width, over keys one after another in tiles of 64 with a
// running maximum. What a row does not see adds exact zeros, so a row's bits depend on no company and no chunk.
#pragma once

#include "attention.h"

namespace headway {

int64_t attention_f32_scratch_bytes(const AttentionShape& shape);

// q: [rows, query_heads · head_dim]; pools: one layer's blocks; out: [rows, query_heads · head_dim].
void attend_f32(const AttentionShape& shape, const AttentionTile& tile, int kv_head, const float* q,
                const float* key_pool, const float* value_pool, float* out, uint8_t* scratch);

// Write one token's key and value [head_dim] of one kv head at its position.
void write_kv_f32(const AttentionShape& shape, const int32_t* table, int position, int kv_head, const float* key,
                  const float* value, float* key_pool, float* value_pool);

}  // namespace headway
