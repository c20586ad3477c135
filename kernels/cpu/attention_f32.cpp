#include "attention_f32.h"

#include <algorithm>
#include <limits>

#include "vector.h"

namespace headway {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();
constexpr int kRowsAtOnce = 4;  // × 4 vectors of 16: half of the registers

int whole_vectors(int width) { return (width + kLanes - 1) / kLanes * kLanes; }

// One sequence's keys and values of one kv head.
struct Blocks {
    const AttentionShape& shape;
    const int32_t* table;
    int kv_head;

    int64_t first(int position) const {
        const int64_t size = int64_t(shape.block_size) * shape.head_dim;
        return (int64_t(table[position / shape.block_size]) * shape.kv_heads + kv_head) * size;
    }
    int64_t key(int position) const { return first(position) + position % shape.block_size; }
    int64_t value(int position) const { return first(position) + int64_t(position % shape.block_size) * shape.head_dim; }
};

struct F32Scratch {
    float *keys, *values;     // [width][64], [64][width]: a tile, gathered
    float *scores, *mixed;    // [rows][64], [rows][width]
    float *most, *sums;       // [rows], [rows][16]
    uint8_t* end;

    F32Scratch(uint8_t* memory, int rows, int width) {
        auto take = [&memory](int64_t count) {
            float* taken = reinterpret_cast<float*>(memory);
            memory += (count * 4 + 63) / 64 * 64;
            return taken;
        };
        keys = take(int64_t(width) * kKeyTile);
        values = take(int64_t(width) * kKeyTile);
        scores = take(int64_t(rows) * kKeyTile);
        mixed = take(int64_t(rows) * width);
        most = take(rows);
        sums = take(int64_t(rows) * kLanes);
        end = memory;
    }
};

template <class Work>
void for_few_rows(int rows, Work&& work) {
    int row = 0;
    for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) work(row, std::integral_constant<int, kRowsAtOnce>());
    for (; row < rows; ++row) work(row, std::integral_constant<int, 1>());
}

class F32Tile {
  public:
    F32Tile(const AttentionShape& shape, const AttentionTile& tile, int kv_head, const float* key_pool,
            const float* value_pool, uint8_t* memory)
        : shape_(shape),
          tile_(tile),
          kv_head_(kv_head),
          group_(shape.query_heads / shape.kv_heads),
          rows_(tile.tokens * group_),
          width_(whole_vectors(shape.head_dim)),
          blocks_{shape, tile.table, kv_head},
          keys_(key_pool),
          values_(value_pool),
          scale_(shape.scale * 1.44269504088896341f),  // log2 e: the exponentials are powers of two
          own_(memory, rows_, width_) {}

    void run(const float* q, float* out) {
        std::fill(own_.most, own_.most + rows_, kUnseen);
        std::memset(own_.sums, 0, sizeof(float) * rows_ * kLanes);
        std::memset(own_.mixed, 0, sizeof(float) * rows_ * width_);
        const int end = tile_.first_position + tile_.tokens;
        for (int key = first_seen(tile_.first_position) / kKeyTile * kKeyTile; key < end; key += kKeyTile) {
            const int count = std::min(kKeyTile, end - key);
            gather(key, count);
            for_few_rows(rows_, [&](int row, auto some) { score<some.value>(q, row); });
            for (int row = 0; row < rows_; ++row) weigh(row, key, count);
            for_few_rows(rows_, [&](int row, auto some) { mix<some.value>(row, count); });
        }
        store(out);
    }

  private:
    int first_seen(int position) const { return shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0; }

    int64_t head_of(int row) const {  // offset of a row's head in queries and results
        const int token = tile_.first_row + row / group_, head = kv_head_ * group_ + row % group_;
        return (int64_t(token) * shape_.query_heads + head) * shape_.head_dim;
    }

    // Behind the last key: zeros, whatever lies in the block.
    void gather(int first, int count) {
        const int width = shape_.head_dim;
        for (int key = 0; key < kKeyTile;) {
            const int offset = (first + key) % shape_.block_size;
            const int run = std::min({kLanes, shape_.block_size - offset, kKeyTile - key});
            const __mmask16 held = lanes_below(std::min(run, count - key)), written = lanes_below(run);
            const float* from = keys_ + (held ? blocks_.key(first + key) : 0);
            for (int i = 0; i < width; ++i) {
                const __m512 some = _mm512_maskz_loadu_ps(held, from + int64_t(i) * shape_.block_size);
                _mm512_mask_storeu_ps(own_.keys + i * kKeyTile + key, written, some);
            }
            key += run;
        }
        for (int key = 0; key < count; ++key) {
            const float* from = values_ + blocks_.value(first + key);
            for (int i = 0; i < width_; i += kLanes) {
                _mm512_store_ps(own_.values + key * width_ + i, _mm512_maskz_loadu_ps(lanes_below(width - i), from + i));
            }
        }
    }

    template <int Rows>
    void score(const float* q, int row) {
        __m512 sums[Rows][4];
        const float* query[Rows];
        for (int r = 0; r < Rows; ++r) {
            query[r] = q + head_of(row + r);
            for (int part = 0; part < 4; ++part) sums[r][part] = _mm512_setzero_ps();
        }
        for (int i = 0; i < shape_.head_dim; ++i) {
            __m512 keys[4];
            for (int part = 0; part < 4; ++part) keys[part] = _mm512_load_ps(own_.keys + i * kKeyTile + part * kLanes);
            for (int r = 0; r < Rows; ++r) {
                const __m512 one = _mm512_set1_ps(query[r][i]);
                for (int part = 0; part < 4; ++part) sums[r][part] = _mm512_fmadd_ps(one, keys[part], sums[r][part]);
            }
        }
        for (int r = 0; r < Rows; ++r) {
            for (int part = 0; part < 4; ++part) {
                _mm512_store_ps(own_.scores + (row + r) * kKeyTile + part * kLanes, sums[r][part]);
            }
        }
    }

    // Scores of keys [first, first + count) to weights 2^(s − max), zero where unseen; what was there is rescaled.
    void weigh(int row, int first, int count) {
        float* scores = own_.scores + row * kKeyTile;
        const int position = tile_.first_position + row / group_;
        const int from = first_seen(position) - first, to = std::min(count, position + 1 - first);
        __m512 s[4], most = _mm512_set1_ps(kUnseen);
        __mmask16 seen[4];
        for (int part = 0; part < 4; ++part) {
            seen[part] = lanes_below(to - part * kLanes) & ~lanes_below(from - part * kLanes);
            s[part] = _mm512_mul_ps(_mm512_load_ps(scores + part * kLanes), _mm512_set1_ps(scale_));
            most = _mm512_mask_max_ps(most, seen[part], most, s[part]);
        }
        if (from >= to) {  // every other bit stays as it was
            for (int part = 0; part < 4; ++part) _mm512_store_ps(scores + part * kLanes, _mm512_setzero_ps());
            return;
        }
        const float before = own_.most[row], now = std::max(before, _mm512_reduce_max_ps(most));
        __m512 sums = _mm512_load_ps(own_.sums + row * kLanes);
        if (now != before && before != kUnseen) {
            const __m512 factor = exp2_of(_mm512_set1_ps(before - now));
            sums = _mm512_mul_ps(sums, factor);
            float* mixed = own_.mixed + row * width_;
            for (int i = 0; i < width_; i += kLanes) {
                _mm512_store_ps(mixed + i, _mm512_mul_ps(_mm512_load_ps(mixed + i), factor));
            }
        }
        own_.most[row] = now;
        for (int part = 0; part < 4; ++part) {
            const __m512 weight = _mm512_maskz_mov_ps(seen[part], exp2_of(_mm512_sub_ps(s[part], _mm512_set1_ps(now))));
            sums = _mm512_add_ps(sums, weight);
            _mm512_store_ps(scores + part * kLanes, weight);
        }
        _mm512_store_ps(own_.sums + row * kLanes, sums);
    }

    template <int Rows>
    void mix(int row, int count) {
        for (int column = 0; column < width_; column += 4 * kLanes) {
            const int vectors = std::min(4, (width_ - column) / kLanes);
            if (vectors == 4) mix_columns<Rows, 4>(row, count, column);
            else for (int v = 0; v < vectors; ++v) mix_columns<Rows, 1>(row, count, column + v * kLanes);
        }
    }

    template <int Rows, int Vectors>
    void mix_columns(int row, int count, int column) {
        float* mixed = own_.mixed + row * width_ + column;
        __m512 sums[Rows][Vectors];
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) sums[r][v] = _mm512_load_ps(mixed + r * width_ + v * kLanes);
        }
        for (int key = 0; key < count; ++key) {
            __m512 values[Vectors];
            for (int v = 0; v < Vectors; ++v) {
                values[v] = _mm512_load_ps(own_.values + key * width_ + column + v * kLanes);
            }
            for (int r = 0; r < Rows; ++r) {
                const __m512 weight = _mm512_set1_ps(own_.scores[(row + r) * kKeyTile + key]);
                for (int v = 0; v < Vectors; ++v) sums[r][v] = _mm512_fmadd_ps(weight, values[v], sums[r][v]);
            }
        }
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) _mm512_store_ps(mixed + r * width_ + v * kLanes, sums[r][v]);
        }
    }

    void store(float* out) {
        for (int row = 0; row < rows_; ++row) {
            const float sum = _mm512_reduce_add_ps(_mm512_load_ps(own_.sums + row * kLanes));
            float* to = out + head_of(row);
            for (int i = 0; i < shape_.head_dim; i += kLanes) {
                const __m512 mixed = _mm512_load_ps(own_.mixed + row * width_ + i);
                _mm512_mask_storeu_ps(to + i, lanes_below(shape_.head_dim - i), _mm512_div_ps(mixed, _mm512_set1_ps(sum)));
            }
        }
    }

    const AttentionShape& shape_;
    const AttentionTile& tile_;
    const int kv_head_, group_, rows_, width_;
    const Blocks blocks_;
    const float *keys_, *values_;
    const float scale_;
    F32Scratch own_;
};

}  // namespace

int64_t attention_f32_scratch_bytes(const AttentionShape& shape) {
    const int group = shape.query_heads / shape.kv_heads;
    const F32Scratch measured(nullptr, tile_tokens(shape) * group, whole_vectors(shape.head_dim));
    return measured.end - static_cast<uint8_t*>(nullptr);
}

void attend_f32(const AttentionShape& shape, const AttentionTile& tile, int kv_head, const float* q,
                const float* key_pool, const float* value_pool, float* out, uint8_t* scratch) {
    F32Tile(shape, tile, kv_head, key_pool, value_pool, scratch).run(q, out);
}

void write_kv_f32(const AttentionShape& shape, const int32_t* table, int position, int kv_head, const float* key,
                  const float* value, float* key_pool, float* value_pool) {
    const Blocks blocks{shape, table, kv_head};
    float* to = key_pool + blocks.key(position);
    for (int i = 0; i < shape.head_dim; ++i) to[int64_t(i) * shape.block_size] = key[i];
    std::memcpy(value_pool + blocks.value(position), value, sizeof(float) * shape.head_dim);
}

}  // namespace headway
