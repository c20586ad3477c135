// Paged attention over bfloat16 keys and values, for one tile of query tokens and one kv head:
//
//   out[t, h] = Σ_j softmax_j(scale · q[t, h] · k[j]) · v[j]      over the keys j that token t sees
//
// j ≤ t's position, and with a window also j > position − window. The query heads of a kv head are rows of the same
// small products (grouped-query attention), so keys and values are read once for all of them.
//
// A block holds, per kv head, a tile of keys and one of values, each laid out for the instruction that sums pairs of
// bfloat16 (vdpbf16ps), whose 16 lanes are keys in the first product and parts of the value in the second:
//
//   keys    [head_dim / 2][block_size][2]     pairs along the head
//   values  [block_size / 2][head_dim][2]     pairs along the positions
//
// Order of sums (so that a row has the same bits in every batch and every chunk): keys in tiles of 64 by absolute
// position with a running maximum (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135), tiles
// in splits of 512, each split's result merged into the one before it.
#pragma once

#include <cstdint>

namespace headway {

constexpr int kKeyTile = 64;     // keys per running-maximum step
constexpr int kKeySplit = 512;   // keys whose result is merged as a whole
constexpr int kTileRows = 48;    // most query rows (tokens · heads of a group) of one tile

struct AttentionShape {
    int query_heads, kv_heads, head_dim, block_size;
    int window;    // 0: sees everything before
    float scale;
};

// Some tokens of one sequence; positions follow each other.
struct AttentionTile {
    const int32_t* table;   // block of each block_size positions
    int first_row;          // packed row of the first token
    int tokens;             // tokens · group ≤ kTileRows, or 1
    int first_position;
};

int tile_tokens(const AttentionShape& shape);

// Bytes of a member's scratch memory, aligned to 64.
int64_t attention_scratch_bytes(const AttentionShape& shape);

// q: bf16 [rows, query_heads · head_dim]; pools: bf16, one layer's blocks; out: f32 [rows, query_heads · head_dim].
void attend(const AttentionShape& shape, const AttentionTile& tile, int kv_head, const uint16_t* q,
            const uint16_t* key_pool, const uint16_t* value_pool, float* out, uint8_t* scratch);

// Write one token's key and value (f32 [head_dim] each) of one kv head at its position.
void write_kv(const AttentionShape& shape, const int32_t* table, int position, int kv_head, const float* key,
              const float* value, uint16_t* key_pool, uint16_t* value_pool);

}  // namespace headway
