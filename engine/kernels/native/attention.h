// Attention of some query tokens of one sequence against one KV head of the paged pool, with an online softmax (Milakov
// and Gimelshein, Online normalizer calculation for softmax, 2018).
//
// The query heads that share the KV head are rows of one matrix. Keys are read in tiles that begin at fixed positions,
// and the sums of a row are added in one fixed order. So its result does not depend on how a prompt was cut or on what
// shares the batch. A tile of which a row sees nothing leaves the sums of that row unchanged, whether it is read or
// not. K and V are read as they are stored.
#pragma once

#include "product.h"
#include "types.h"
#include "vector.h"

namespace SLOTDECK_ISA {

constexpr int KEY_TILE = 64;  // keys of a tile
constexpr int FEW_ROWS = 5;   // up to this many, keys and values are read in place
constexpr int RUN = 16;       // keys that are contiguous in memory: the size of a block is a multiple of it
constexpr int ROWS_PER_LOAD = LANES == 16 ? 4 : 3;  // rows that use each loaded vector

template <int KV>
inline Floats load_stored(const void* base, int64_t at) {
    if constexpr (KV == KV_FP32) return load<Floats>((const float*)base + at);
    if constexpr (KV == KV_BF16) return from_bf16((const uint16_t*)base + at);
    if constexpr (KV == KV_FP16) return from_fp16((const uint16_t*)base + at);
    return __builtin_convertvector(load<Bytes>((const int8_t*)base + at), Floats);
}

constexpr int64_t bytes_of(int kv_type) { return kv_type == KV_FP32 ? 4 : kv_type == KV_INT8 ? 1 : 2; }

// One layer's K or V in the pool. The pool row of a token is (KV head x num_blocks + block) x 16 + offset.
struct PoolTensor {
    int kv_type;
    char* data;
    float* scales;  // int8 only: value = stored value x scale of its pool row
    int64_t width, stride;

    const char* row(int64_t pool_row) const { return data + pool_row * width * bytes_of(kv_type); }
};

inline PoolTensor pool_tensor(const Model& model, const Step& step, void* const* data, float* const* scales,
                              int layer) {
    float* own = step.kv_type == KV_INT8 ? scales[layer] : nullptr;
    return {step.kv_type, (char*)data[layer], own, model.head_dim, model.head_stride};
}

// Keys or values of a tile in runs of RUN: where each run begins, and the distance between its rows (in values). While
// a row is read, the same row of `next` is prefetched: blocks can be anywhere, so the processor cannot predict them.
struct Runs {
    int kv_type;
    int64_t step, width;
    const char* at[KEY_TILE / RUN];
    const char* next[KEY_TILE / RUN];
    int64_t next_bytes;  // of a row; 0: nothing to prefetch

    void fetch(int64_t row) const {
        const char* line = next[row / RUN] + row % RUN * next_bytes;
        for (int64_t byte = 0; byte < next_bytes; byte += 64) __builtin_prefetch(line + byte, 0, 0);
    }
};

// Copies `count` rows of a run to fp32: the stored numbers, without their scales, and zeros up to the stride.
template <int KV>
inline void copy_rows(const Runs& from, int64_t run, int64_t count, int64_t stride, float* to) {
    for (int64_t row = 0; row < count; ++row, to += stride) {
        const char* line = from.at[run] + row * from.step * bytes_of(KV);
        from.fetch(run * RUN + row);
        int64_t i = 0;
        for (; i + LANES <= from.width; i += LANES) store(to + i, load_stored<KV>(line, i));
        if (i == stride) continue;
        char rest[LANES * 4] = {0};
        memcpy(rest, line + i * bytes_of(KV), (size_t)((from.width - i) * bytes_of(KV)));
        for (; i < stride; i += LANES) {
            store(to + i, load_stored<KV>(rest, 0));
            memset(rest, 0, sizeof rest);
        }
    }
}

// The same rows as fp32 in `to` [KEY_TILE, stride]. After the last row, zeros fill up its run.
NOINLINE Runs copied(const Runs& from, int64_t count, int64_t stride, float* to) {
    Runs result{KV_FP32, stride, stride, {}, {}, 0};
    for (int64_t run = 0; run * RUN < count; ++run) {
        const int64_t here = count - run * RUN < RUN ? count - run * RUN : RUN;
        float* own = to + run * RUN * stride;
        switch (from.kv_type) {
            case KV_FP32: copy_rows<KV_FP32>(from, run, here, stride, own); break;
            case KV_BF16: copy_rows<KV_BF16>(from, run, here, stride, own); break;
            case KV_FP16: copy_rows<KV_FP16>(from, run, here, stride, own); break;
            default: copy_rows<KV_INT8>(from, run, here, stride, own); break;
        }
        memset(own + here * stride, 0, (size_t)((RUN - here) * stride) * 4);
        result.at[run] = (const char*)own;
    }
    return result;
}

// Whether the pool can hold `values` [stride].
inline bool representable(const PoolTensor& to, const float* values) {
    const float limit = to.kv_type == KV_FP16 ? 65520.0f : 3.38e38f;
    Ints beyond = Ints{};
    for (int64_t i = 0; i < to.stride; i += LANES) beyond |= ~(absolute(load<Floats>(values + i)) < limit);
    for (int i = 0; i < LANES; ++i)
        if (beyond[i]) return false;
    return true;
}

// Stores `values` (zeros beyond the width) as one row, rounded to the type of the pool. A value that fp16 cannot hold
// becomes NaN, and so does the scale of an int8 row that is not finite. Then the request fails instead of continuing
// with wrong keys.
NOINLINE void store_row(const PoolTensor& to, int64_t pool_row, const float* values) {
    const int64_t width = to.width, at = pool_row * width;
    if (to.kv_type == KV_FP32) {
        memcpy((float*)to.data + at, values, (size_t)width * 4);
        return;
    }
    float scale = 1;
    if (to.kv_type == KV_INT8) {
        Floats largest = Floats{}, not_finite = Floats{};
        for (int64_t i = 0; i < to.stride; i += LANES) {
            const Floats value = load<Floats>(values + i);
            largest = larger(absolute(value), largest);
            not_finite += value - value;
        }
        scale = maximum(largest) / 127.0f;
        scale = (scale < 1.17549435e-38f ? 1.17549435e-38f : scale) + sum(not_finite);
        to.scales[pool_row] = scale;
    }
    for (int64_t i = 0; i < width; i += LANES) {
        const Floats value = load<Floats>(values + i);
        const size_t lanes = (size_t)(width - i < LANES ? width - i : LANES);
        if (to.kv_type == KV_INT8) {
            const Bytes codes = __builtin_convertvector(nearest(value / scale), Bytes);
            memcpy((int8_t*)to.data + at + i, &codes, lanes);
            continue;
        }
        const Floats held = absolute(value) < 65520.0f ? value : value - value / Floats{};
        const Halves half = to.kv_type == KV_BF16 ? to_bf16(value) : to_fp16(held);
        memcpy((uint16_t*)to.data + at + i, &half, 2 * lanes);
    }
}

// Scores of R rows against `count` keys (whole vectors of them), which are read in place.
template <int KV, int R>
NOINLINE void score_rows(const float* query, const Runs& keys, int64_t count, int64_t stride, float* scores) {
    for (int64_t at = 0; at < count; at += LANES) {
        const char* first = keys.at[at / RUN] + at % RUN * keys.step * bytes_of(KV);
        Floats sums[R][LANES];
        for (int key = 0; key < LANES; ++key) {
            const char* line = first + key * keys.step * bytes_of(KV);
            keys.fetch(at + key);
            Floats sum[R], part = load_stored<KV>(line, 0);
            for (int r = 0; r < R; ++r) sum[r] = load<Floats>(query + r * stride) * part;
            for (int64_t i = LANES; i < keys.width; i += LANES) {
                part = load_stored<KV>(line, i);
                for (int r = 0; r < R; ++r) sum[r] += load<Floats>(query + r * stride + i) * part;
            }
            for (int r = 0; r < R; ++r) sums[r][key] = sum[r];
        }
        for (int r = 0; r < R; ++r) store(scores + r * KEY_TILE + at, sum_rows(sums[r]));
    }
}

// The same sums for R rows from transposed keys [stride][LANES], in the same order: distant lanes are added first.
template <int STEP, int R>
inline void tree(const float* query, const float* keys, int64_t stride, int first, Floats* sums) {
    if constexpr (STEP == LANES) {
        const Floats key = load<Floats>(keys + first * LANES);
        for (int r = 0; r < R; ++r) sums[r] = query[r * stride + first] * key;
        for (int64_t i = first + LANES; i < stride; i += LANES) {
            const Floats next = load<Floats>(keys + i * LANES);
            for (int r = 0; r < R; ++r) sums[r] += query[r * stride + i] * next;
        }
    } else {
        Floats other[R];
        tree<STEP * 2, R>(query, keys, stride, first, sums);
        tree<STEP * 2, R>(query, keys, stride, first + STEP, other);
        for (int r = 0; r < R; ++r) sums[r] = sums[r] + other[r];
    }
}

// out[R][stride] += weights[R][KEY_TILE] x values, which are read in place, four vectors of a row at a time.
template <int KV, int R>
NOINLINE void mix_rows(const float* weights, const Runs& values, int64_t count, int64_t stride, float* out) {
    for (int64_t at = 0; at < values.width; at += 4 * LANES) {
        const int vectors = values.width - at < 4 * LANES ? (int)((values.width - at) / LANES) : 4;
        Floats sums[R][4];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < vectors; ++v) sums[r][v] = load<Floats>(out + r * stride + at + v * LANES);
        for (int64_t key = 0; key < count; ++key) {
            const char* line = values.at[key / RUN] + key % RUN * values.step * bytes_of(KV);
            if (at == 0) values.fetch(key);
            if (vectors == 4) {
                for (int v = 0; v < 4; ++v) {
                    const Floats value = load_stored<KV>(line, at + v * LANES);
                    for (int r = 0; r < R; ++r) sums[r][v] += weights[r * KEY_TILE + key] * value;
                }
            } else {
                for (int v = 0; v < vectors; ++v) {
                    const Floats value = load_stored<KV>(line, at + v * LANES);
                    for (int r = 0; r < R; ++r) sums[r][v] += weights[r * KEY_TILE + key] * value;
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < vectors; ++v) store(out + r * stride + at + v * LANES, sums[r][v]);
    }
}

// Calls work(R, first row) for as few and as equal groups of rows as ROWS_PER_LOAD allows. R is a compile-time
// constant.
template <typename Work>
inline void in_pieces(int64_t rows, Work work) {
    for (int64_t first = 0, pieces = (rows + ROWS_PER_LOAD - 1) / ROWS_PER_LOAD; pieces > 0; --pieces) {
        const int64_t here = (rows - first + pieces - 1) / pieces;
        switch (here) {
            case 1: work(Constant<1>{}, first); break;
            case 2: work(Constant<2>{}, first); break;
            case 3: work(Constant<3>{}, first); break;
            default: work(Constant<ROWS_PER_LOAD>{}, first); break;
        }
        first += here;
    }
}

template <int KV>
inline void score_as(const float* query, const Runs& keys, int64_t rows, int64_t count, int64_t stride, float* scores) {
    in_pieces(rows, [&](auto r, int64_t first) {
        score_rows<KV, decltype(r)::value>(query + first * stride, keys, count, stride, scores + first * KEY_TILE);
    });
}

NOINLINE void score(const float* query, const Runs& keys, int64_t rows, int64_t count, int64_t stride, float* scores) {
    switch (keys.kv_type) {
        case KV_FP32: return score_as<KV_FP32>(query, keys, rows, count, stride, scores);
        case KV_BF16: return score_as<KV_BF16>(query, keys, rows, count, stride, scores);
        case KV_FP16: return score_as<KV_FP16>(query, keys, rows, count, stride, scores);
        default: return score_as<KV_INT8>(query, keys, rows, count, stride, scores);
    }
}

template <int KV>
inline void mix_as(const float* weights, const Runs& values, int64_t rows, int64_t count, int64_t stride, float* out) {
    in_pieces(rows, [&](auto r, int64_t first) {
        mix_rows<KV, decltype(r)::value>(weights + first * KEY_TILE, values, count, stride, out + first * stride);
    });
}

NOINLINE void mix(const float* weights, const Runs& values, int64_t rows, int64_t count, int64_t stride, float* out) {
    switch (values.kv_type) {
        case KV_FP32: return mix_as<KV_FP32>(weights, values, rows, count, stride, out);
        case KV_BF16: return mix_as<KV_BF16>(weights, values, rows, count, stride, out);
        case KV_FP16: return mix_as<KV_FP16>(weights, values, rows, count, stride, out);
        default: return mix_as<KV_INT8>(weights, values, rows, count, stride, out);
    }
}

// The same scores from fp32 keys that are transposed first, which pays off for many rows.
NOINLINE void score_transposed(const float* query, const Runs& keys, int64_t rows, int64_t count, int64_t stride,
                               float* transposed, float* scores) {
    for (int64_t at = 0; at < count; at += LANES) {
        const float* group = (const float*)keys.at[at / RUN] + at % RUN * stride;
        for (int64_t i = 0; i < stride; i += LANES) {
            Floats square[LANES];
            for (int key = 0; key < LANES; ++key) square[key] = load<Floats>(group + key * stride + i);
            transpose(square);
            for (int key = 0; key < LANES; ++key) store(transposed + (i + key) * LANES, square[key]);
        }
        in_pieces(rows, [&](auto r, int64_t first) {
            constexpr int R = decltype(r)::value;
            Floats sums[R];
            tree<1, R>(query + first * stride, transposed, stride, 0, sums);
            for (int row = 0; row < R; ++row) store(scores + (first + row) * KEY_TILE + at, sums[row]);
        });
    }
}

// The softmax of a row over some keys: the weighted sum of values, relative to the largest score, and the total weight.
struct Softmax {
    float* values;  // [stride]
    float largest, total;
};

// Floats of scratch that `attend` needs for `rows` rows.
inline int64_t attention_scratch(int64_t rows, int64_t stride) {
    return rows * (3 * stride + KEY_TILE + 2 + (int64_t)sizeof(Softmax) / 4) + 2 * KEY_TILE * stride + LANES * stride;
}

// Adds the result of the next split to a row. If the largest score of the split is -inf, the row sees none of its keys.
// This is a separate function because the compiler may fuse multiplications and additions differently in each copy, and
// the result must not depend on which code merges.
NOINLINE void merge_split(Softmax& row, const Softmax& split, int64_t stride) {
    if (split.largest == -__builtin_inff()) return;
    float kept = 1, share = 1;  // exp(0) of the larger one
    if (row.largest == -__builtin_inff())
        kept = 0;
    else if (split.largest > row.largest)
        kept = exponential(splat(row.largest - split.largest))[0];
    else
        share = exponential(splat(split.largest - row.largest))[0];
    row.largest = split.largest > row.largest ? split.largest : row.largest;
    row.total = row.total * kept + split.total * share;
    for (int64_t i = 0; i < stride; i += LANES)
        store(row.values + i, load<Floats>(row.values + i) * kept + load<Floats>(split.values + i) * share);
}

// Whether the query heads that share a KV head fill whole groups, so that a task can quantise its own result.
inline bool whole_groups(const Model& model) { return model.heads / model.kv_heads * model.head_dim % GROUP == 0; }

// Quantises columns `first` to `first + count - 1`, whole groups, of a token's attention output.
inline void quantise_attention(const Model& model, const Workspace& space, int64_t token, int64_t first,
                               int64_t count) {
    const int64_t at = token * attended(model) + first;
    quantise_row(space.attended + at, count, space.codes + at, space.scales + at / GROUP, space.sums + at / BLOCK);
}

// The result of a row: query head `head` of `token`.
inline void finish_row(const Model& model, const Workspace& space, const Softmax& row, int64_t token, int64_t head) {
    const int64_t width = model.head_dim;
    const float inverse = 1.0f / row.total;
    float* to = space.attended + token * attended(model) + head * width;
    for (int64_t i = 0; i < width; ++i) to[i] = row.values[i] * inverse;
}

// The first key that a task reads: the beginning of the first tile that its first token sees, or of its first split.
inline int64_t first_key(const Model& model, const AttentionTask& task) {
    const int64_t oldest = oldest_key(model, task.start), split = (int64_t)task.split * SPLIT;
    return oldest > split ? oldest / KEY_TILE * KEY_TILE : split;
}

// The pool row at which the run of a position begins.
inline int64_t run_of(const Model& model, const Step& step, const AttentionTask& task, int64_t position) {
    const int32_t* blocks = step.blocks + step.table_offsets[task.span];
    const int64_t size = model.block_size, block = task.kv_head * (int64_t)step.num_blocks + blocks[position / size];
    return block * size + position % size / RUN * RUN;
}

// Computes a task. `after` is the task that this thread will probably compute next: its first keys are prefetched at
// the end.
NOINLINE void attend(const Model& model, const Step& step, const Workspace& space, const AttentionTask& task,
                     const AttentionTask& after, int layer, float* scratch) {
    const PoolTensor all_keys = pool_tensor(model, step, step.keys, step.key_scales, layer);
    const PoolTensor all_values = pool_tensor(model, step, step.values, step.value_scales, layer);
    const int64_t stride = model.head_stride, width = model.head_dim, shared = model.heads / model.kv_heads;
    const int64_t rows = task.count * shared;
    float* query = scratch;
    float* out = query + rows * stride;
    float* mixed = out + rows * stride;
    float* weights = mixed + rows * stride;
    float* keys = weights + rows * KEY_TILE;
    float* values = keys + KEY_TILE * stride;
    float* transposed = values + KEY_TILE * stride;
    float* largest = transposed + LANES * stride;
    float* total = largest + rows;
    Softmax* sums = (Softmax*)(total + rows);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t token = task.first_row + row / shared, head = task.kv_head * shared + row % shared;
        memcpy(query + row * stride, space.query + (token * model.heads + head) * stride, (size_t)stride * 4);
        sums[row] = {out + row * stride, -__builtin_inff(), 0};
    }
    memset(out, 0, (size_t)(rows * stride) * 4);
    // A pool row can be read in whole vectors only if its width is a multiple of them.
    const bool whole = width % LANES == 0, few = rows <= FEW_ROWS, is_split = task.partial >= 0;
    const int64_t row_bytes = width * bytes_of(step.kv_type);
    const int64_t seen = task.start + task.count;  // keys that the last token sees, apart from the window
    const int64_t window = model.window > 0 ? model.window : seen;
    const int64_t splits_end = (int64_t)(task.split + task.splits) * SPLIT,
                  last = splits_end < seen ? splits_end : seen;
    const int64_t first = first_key(model, task);
    const int64_t after_begin = first_key(model, after), after_seen = after.start + after.count;
    for (int64_t begin = first; begin < last; begin += KEY_TILE) {
        if (begin == first || begin % SPLIT == 0) {
            for (int64_t row = 0; row < rows; ++row) {
                largest[row] = -__builtin_inff();
                total[row] = 0;
            }
            memset(mixed, 0, (size_t)(rows * stride) * 4);
        }
        const int64_t end = begin + KEY_TILE < seen ? begin + KEY_TILE : seen, count = end - begin;
        const int64_t padded = (count + LANES - 1) / LANES * LANES;
        int64_t pool_rows[KEY_TILE / RUN];
        Runs part_keys{step.kv_type, width, width, {}, {}, row_bytes}, part_values = part_keys;
        for (int64_t run = 0; run < KEY_TILE / RUN; ++run) {
            // Beyond the last key there is nothing to prefetch: then `next` is the last run again.
            const int64_t here = begin + run * RUN, next = here + KEY_TILE, later = after_begin + run * RUN;
            pool_rows[run] = run_of(model, step, task, here < seen ? here : seen - 1);
            part_keys.at[run] = all_keys.row(pool_rows[run]);
            part_values.at[run] = part_keys.next[run] = all_values.row(pool_rows[run]);
            part_values.next[run] = all_keys.row(
                begin + KEY_TILE < last ? run_of(model, step, task, next < seen ? next : seen - 1)
                                        : run_of(model, step, after, later < after_seen ? later : after_seen - 1));
        }
        if (!whole || !few) {
            part_keys = copied(part_keys, count, stride, keys);
            part_values = copied(part_values, count, stride, values);
        }
        if (few)
            score(query, part_keys, rows, padded, stride, weights);
        else
            score_transposed(query, part_keys, rows, padded, stride, transposed, weights);
        const bool scaled = step.kv_type == KV_INT8;
        for (int64_t row = 0; row < rows; ++row) {
            float* line = weights + row * KEY_TILE;
            const int64_t visible = task.start + row / shared + 1 - begin;  // keys of this tile up to the row's token
            const int64_t outside = visible - window;                       // those of them before its window
            if (visible <= 0 || outside >= KEY_TILE) {
                memset(line, 0, KEY_TILE * 4);
                continue;
            }
            if (scaled)
                for (int64_t at = 0; at < padded; at += LANES)
                    store(line + at,
                          load<Floats>(line + at) * load<Floats>(all_keys.scales + pool_rows[at / RUN] + at % RUN));
            for (int64_t key = 0; key < outside; ++key) line[key] = -__builtin_inff();
            for (int64_t key = visible; key < padded; ++key) line[key] = -__builtin_inff();
            Floats top = splat(largest[row]);
            for (int64_t at = 0; at < padded; at += LANES) top = larger(load<Floats>(line + at), top);
            const float highest = maximum(top), before = largest[row];
            const float kept = before == -__builtin_inff() ? 0.0f : exponential(splat(before - highest))[0];
            Floats sums = Floats{};
            for (int64_t at = 0; at < padded; at += LANES) {
                const Floats weight = exponential(load<Floats>(line + at) - highest);
                sums += weight;
                store(line + at,
                      scaled ? weight * load<Floats>(all_values.scales + pool_rows[at / RUN] + at % RUN) : weight);
            }
            total[row] = total[row] * kept + sum(sums);
            largest[row] = highest;
            if (before != highest)
                for (int64_t i = 0; i < stride; i += LANES)
                    store(mixed + row * stride + i, load<Floats>(mixed + row * stride + i) * kept);
        }
        mix(weights, part_values, rows, count, stride, mixed);
        if ((begin + KEY_TILE) % SPLIT != 0 && begin + KEY_TILE < last) continue;
        if (!is_split) {
            for (int64_t row = 0; row < rows; ++row)
                merge_split(sums[row], {mixed + row * stride, largest[row], total[row]}, stride);
            continue;
        }
        float* partial = space.partials + (task.partial + begin / SPLIT - task.split) * rows * (stride + 2);
        memcpy(partial, mixed, (size_t)(rows * stride) * 4);
        memcpy(partial + rows * stride, largest, (size_t)rows * 4);
        memcpy(partial + rows * (stride + 1), total, (size_t)rows * 4);
    }
    if (is_split) return;
    for (int64_t row = 0; row < rows; ++row)
        finish_row(model, space, sums[row], task.first_row + row / shared, task.kv_head * shared + row % shared);
    if (!whole_groups(model)) return;
    for (int64_t i = 0; i < task.count; ++i)
        quantise_attention(model, space, task.first_row + i, task.kv_head * shared * width, shared * width);
}

// Merges the splits of one row that separate tasks computed. `scratch` holds a row of values.
NOINLINE void merge_splits(const Model& model, const Workspace& space, const SplitRow& split_row, int64_t token,
                           float* scratch) {
    const int64_t stride = model.head_stride, shared = model.heads / model.kv_heads;
    for (int64_t head = 0; head < model.heads; ++head) {
        memset(scratch, 0, (size_t)stride * 4);
        Softmax whole{scratch, -__builtin_inff(), 0};
        const int64_t row = head % shared;
        float* partial =
            space.partials + (split_row.partial + head / shared * split_row.splits) * shared * (stride + 2);
        for (int64_t split = 0; split < split_row.splits; ++split, partial += shared * (stride + 2))
            merge_split(whole,
                        {partial + row * stride, partial[shared * stride + row], partial[shared * (stride + 1) + row]},
                        stride);
        finish_row(model, space, whole, token, head);
    }
}

}  // namespace SLOTDECK_ISA
