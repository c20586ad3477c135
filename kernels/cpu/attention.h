// Paged attention over bfloat16 or 8-bit keys and values, for one tile of query tokens and one kv head:
//
//   out[t, h] = Σ_j softmax_j(scale · q[t, h] · k[j]) · v[j]      over the keys j that token t sees
//
// j ≤ t's position, and with a window also j > position − window. The query heads of a kv head are rows of the same
// small products (grouped-query attention), so keys and values are read once for all of them.
//
// A block holds, per kv head, a tile of keys and one of values, each laid out for the instruction that sums pairs of
// bfloat16 (vdpbf16ps) or fours of bytes (vpdpbusd), whose 16 lanes are keys in the first product and parts of the
// value in the second:
//
//   bf16   keys    [head_dim / 2][block_size][2]     pairs along the head
//          values  [block_size / 2][head_dim][2]     pairs along the positions
//   int8   keys    [head_dim / 4][block_size][4] u8 = k + 128, then [block_size] f32 scales
//          values  [block_size / 4][head_dim][4] s8,           then [block_size] f32 scales
//
// Order of sums (so that a row has the same bits in every batch and every chunk): keys in tiles of 64 by absolute
// position with a running maximum (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135), tiles
// in splits of 512, each split's result merged into the one before it. Who computes which split changes nothing.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace headway {

constexpr int kKeyTile = 64;     // keys per running-maximum step
constexpr int kKeySplit = 512;   // keys whose result is merged as a whole
constexpr int kTileRows = 48;    // most query rows (tokens · heads of a group) of one tile

struct AttentionShape {
    int query_heads, kv_heads, head_dim, block_size;
    int window;    // 0: sees everything before
    float scale;
    int element;   // HeadwayElement of keys and values
};

// Some tokens of one sequence; positions follow each other.
struct AttentionTile {
    const int32_t* table;   // block of each block_size positions
    int first_row;          // packed row of the first token
    int tokens;             // tokens · group ≤ kTileRows, or 1
    int first_position;
    bool is_alone;          // the only token of its sequence in this step
};

// The part of a tile that one kv head's queries are.
struct AttentionItem {
    const AttentionTile* tile;
    int kv_head;
};

// One layer's blocks.
struct KvPools {
    uint8_t *keys, *values;
};

// Splits [begin, end) that a tile sees.
struct Splits {
    int begin, end;
};

int tile_tokens(const AttentionShape& shape);
Splits splits_of(const AttentionShape& shape, const AttentionTile& tile);

// Bytes of one block's keys (or values) of one kv head.
int64_t kv_tile_bytes(const AttentionShape& shape);

// Bytes of a member's scratch memory, aligned to 64.
int64_t attention_scratch_bytes(const AttentionShape& shape);

// q: bf16 [rows, query_heads · head_dim]; out: f32 of the same shape. `next`: what this member does afterwards, so
// that its first keys are on their way; or null.
void attend(const AttentionShape& shape, const AttentionItem& item, const AttentionItem* next, const uint16_t* q,
            const KvPools& pools, float* out, uint8_t* scratch);

// The same in parts: one split's result into `part` (split_floats(…) long); then all of them, in order, into `out`.
int64_t split_floats(const AttentionShape& shape, const AttentionTile& tile);
void attend_split(const AttentionShape& shape, const AttentionItem& item, int split, const uint16_t* q,
                  const KvPools& pools, float* part, uint8_t* scratch);
void merge_splits(const AttentionShape& shape, const AttentionItem& item, const float* parts, float* out, uint8_t* scratch);

// Write one token's key and value (f32 [head_dim] each) of one kv head at its position.
void write_kv(const AttentionShape& shape, const int32_t* table, int position, int kv_head, const float* key,
              const float* value, const KvPools& pools);

}  // namespace headway
