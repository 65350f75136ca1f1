// Attention of some query tokens of one sequence against one kv head of the paged pool, with an online softmax.
//
// Query heads that share the kv head are rows beside each other. Keys are walked in parts that begin at fixed
// positions, and a row's sums are added in one fixed order, so its result does not depend on how a prompt was cut or
// what shares the batch. K and V are read as stored.
#pragma once

#include "types.h"
#include "vector.h"

namespace SLOTDECK_ISA {

constexpr int PART = 64;      // keys of a part
constexpr int CHUNK = 16;     // query tokens of a task
constexpr int FEW_ROWS = 5;   // up to here, keys are not transposed

template <int KV>
inline Floats load_stored(const void* base, int64_t at) {
    if constexpr (KV == KV_FP32) return load<Floats>((const float*)base + at);
    if constexpr (KV == KV_BF16) return from_bf16((const uint16_t*)base + at);
    if constexpr (KV == KV_FP16) return from_fp16((const uint16_t*)base + at);
    return __builtin_convertvector(load<Bytes>((const int8_t*)base + at), Floats);
}

template <int KV>
inline void fetch_as(const void* base, int64_t at, float scale, int64_t width, int64_t stride, float* to) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(to + i, load_stored<KV>(base, at + i) * scale);
    if (i == stride) return;
    constexpr int SIZE = KV == KV_FP32 ? 4 : KV == KV_INT8 ? 1 : 2;
    char rest[LANES * 4] = {0};
    memcpy(rest, (const char*)base + (at + i) * SIZE, (size_t)(width - i) * SIZE);
    for (; i < stride; i += LANES) {
        store(to + i, load_stored<KV>(rest, 0) * scale);
        memset(rest, 0, sizeof rest);
    }
}

// One layer's K or V in the pool. A place is the number of a token's row: (kv head x num_blocks + block) x 16 + offset.
struct Stored {
    int kv_type;
    void* data;
    float* scales;
    int64_t width, stride;

    // Copies a row as fp32 to `to`: the stored values, then zeros up to the stride.
    void fetch(int64_t place, float* to) const {
        switch (kv_type) {
            case KV_FP32: return fetch_as<KV_FP32>(data, place * width, 1.0f, width, stride, to);
            case KV_BF16: return fetch_as<KV_BF16>(data, place * width, 1.0f, width, stride, to);
            case KV_FP16: return fetch_as<KV_FP16>(data, place * width, 1.0f, width, stride, to);
            default: return fetch_as<KV_INT8>(data, place * width, scales[place], width, stride, to);
        }
    }
};

inline Stored stored(const Model& model, const Step& step, void* const* data, float* const* scales, int layer) {
    float* own = step.kv_type == KV_INT8 ? scales[layer] : nullptr;
    return {step.kv_type, data[layer], own, model.head_dim, model.head_stride};
}

// Stores `values` (zeros beyond the width) as one row, rounded to the type of the pool. What fp16 cannot hold becomes
// NaN, and so does the scale of an int8 row that is not finite: the request fails instead of going on with wrong keys.
SEPARATE void keep(const Stored& to, int64_t place, const float* values) {
    const int64_t width = to.width, at = place * width;
    if (to.kv_type == KV_FP32) {
        memcpy((float*)to.data + at, values, (size_t)width * 4);
        return;
    }
    float scale = 1;
    if (to.kv_type == KV_INT8) {
        Floats largest = Floats{}, spoiled = Floats{};
        for (int64_t i = 0; i < to.stride; i += LANES) {
            const Floats value = load<Floats>(values + i);
            largest = larger(absolute(value), largest);
            spoiled += value - value;
        }
        scale = maximum(largest) / 127.0f;
        scale = (scale < 1.17549435e-38f ? 1.17549435e-38f : scale) + sum(spoiled);
        to.scales[place] = scale;
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

// Scores of one row against LANES keys that lie as rows.
inline Floats scores_of_rows(const float* query, const float* keys, int64_t stride) {
    Floats sums[LANES];
    for (int key = 0; key < LANES; ++key) {
        sums[key] = load<Floats>(query) * load<Floats>(keys + key * stride);
        for (int64_t i = LANES; i < stride; i += LANES)
            sums[key] += load<Floats>(query + i) * load<Floats>(keys + key * stride + i);
    }
    return sum_rows(sums);
}

// The same sums in the same order, from transposed keys [stride][LANES]: lanes far apart are added first.
template <int STEP>
inline Floats tree(const float* query, const float* keys, int64_t stride, int first) {
    if constexpr (STEP == LANES) {
        Floats sum = query[first] * load<Floats>(keys + first * LANES);
        for (int64_t i = first + LANES; i < stride; i += LANES) sum += query[i] * load<Floats>(keys + i * LANES);
        return sum;
    } else {
        const Floats sum = tree<STEP * 2>(query, keys, stride, first);
        return sum + tree<STEP * 2>(query, keys, stride, first + STEP);
    }
}

// out[rows][width] += weights[rows][PART] x values[keys][stride], four vectors of width at a time.
template <int R>
SEPARATE void mix_rows(const float* weights, const float* values, int64_t keys, int64_t stride, float* out) {
    for (int64_t at = 0; at < stride; at += 4 * LANES) {
        const int vectors = stride - at < 4 * LANES ? (int)((stride - at) / LANES) : 4;
        Floats sums[R][4];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < vectors; ++v) sums[r][v] = load<Floats>(out + r * stride + at + v * LANES);
        if (vectors == 4) {
            for (int64_t key = 0; key < keys; ++key)
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < 4; ++v)
                        sums[r][v] += weights[r * PART + key] * load<Floats>(values + key * stride + at + v * LANES);
        } else {
            for (int64_t key = 0; key < keys; ++key)
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < vectors; ++v)
                        sums[r][v] += weights[r * PART + key] * load<Floats>(values + key * stride + at + v * LANES);
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < vectors; ++v) store(out + r * stride + at + v * LANES, sums[r][v]);
    }
}

SEPARATE void mix(const float* weights, const float* values, int64_t rows, int64_t keys, int64_t stride, float* out) {
    constexpr int MOST = LANES == 16 ? 4 : 2;
    for (; rows >= MOST; rows -= MOST, weights += MOST * PART, out += MOST * stride)
        mix_rows<MOST>(weights, values, keys, stride, out);
    for (; rows > 0; --rows, weights += PART, out += stride) mix_rows<1>(weights, values, keys, stride, out);
}

// Floats of scratch that `attend` needs for `rows` rows.
inline int64_t attention_scratch(int64_t rows, int64_t stride) {
    return rows * (2 * stride + PART + 2) + 2 * PART * stride + LANES * stride;
}

SEPARATE void attend(const Model& model, const Step& step, const Workspace& space, const AttentionTask& task, int layer,
                   float* scratch) {
    const Stored all_keys = stored(model, step, step.keys, step.key_scales, layer);
    const Stored all_values = stored(model, step, step.values, step.value_scales, layer);
    const int64_t stride = model.head_stride, width = model.head_dim, shared = model.heads / model.kv_heads;
    const int64_t rows = task.count * shared, size = model.block_size;
    const int32_t* blocks = step.blocks + step.span_blocks[task.span];
    float* query = scratch;
    float* out = query + rows * stride;
    float* weights = out + rows * stride;
    float* keys = weights + rows * PART;
    float* values = keys + PART * stride;
    float* turned = values + PART * stride;
    float* largest = turned + LANES * stride;
    float* total = largest + rows;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t token = task.first_row + row / shared, head = task.kv_head * shared + row % shared;
        memcpy(query + row * stride, space.query + (token * model.heads + head) * stride, (size_t)stride * 4);
        largest[row] = -__builtin_inff();
        total[row] = 0;
    }
    memset(out, 0, (size_t)(rows * stride) * 4);
    const int64_t seen = task.start + task.count;  // keys that the last token sees
    for (int64_t begin = 0; begin < seen; begin += PART) {
        const int64_t end = begin + PART < seen ? begin + PART : seen, count = end - begin;
        const int64_t padded = (count + LANES - 1) / LANES * LANES;
        for (int64_t key = 0; key < count; ++key) {
            const int64_t position = begin + key;
            const int64_t place = (task.kv_head * (int64_t)step.num_blocks + blocks[position / size]) * size + position % size;
            all_keys.fetch(place, keys + key * stride);
            all_values.fetch(place, values + key * stride);
        }
        memset(keys + count * stride, 0, (size_t)((padded - count) * stride) * 4);
        for (int64_t at = 0; at < padded; at += LANES) {
            const float* group = keys + at * stride;
            if (rows <= FEW_ROWS) {
                for (int64_t row = 0; row < rows; ++row)
                    store(weights + row * PART + at, scores_of_rows(query + row * stride, group, stride));
                continue;
            }
            for (int64_t i = 0; i < stride; i += LANES) {
                Floats square[LANES];
                for (int key = 0; key < LANES; ++key) square[key] = load<Floats>(group + key * stride + i);
                transpose(square);
                for (int key = 0; key < LANES; ++key) store(turned + (i + key) * LANES, square[key]);
            }
            for (int64_t row = 0; row < rows; ++row)
                store(weights + row * PART + at, tree<1>(query + row * stride, turned, stride, 0));
        }
        for (int64_t row = 0; row < rows; ++row) {
            float* line = weights + row * PART;
            const int64_t visible = task.start + row / shared + 1 - begin;  // keys of this part that the row sees
            if (visible <= 0) {
                memset(line, 0, PART * 4);
                continue;
            }
            for (int64_t key = visible; key < padded; ++key) line[key] = -__builtin_inff();
            Floats top = splat(largest[row]);
            for (int64_t at = 0; at < padded; at += LANES) top = larger(load<Floats>(line + at), top);
            const float most = maximum(top), before = largest[row];
            const float kept = before == -__builtin_inff() ? 0.0f : exponential(splat(before - most))[0];
            Floats sums = Floats{};
            for (int64_t at = 0; at < padded; at += LANES) {
                const Floats weight = exponential(load<Floats>(line + at) - most);
                sums += weight;
                store(line + at, weight);
            }
            total[row] = total[row] * kept + sum(sums);
            largest[row] = most;
            if (before != most)
                for (int64_t i = 0; i < stride; i += LANES)
                    store(out + row * stride + i, load<Floats>(out + row * stride + i) * kept);
        }
        mix(weights, values, rows, count, stride, out);
    }
    const int64_t line = (model.heads * width + 63) / 64 * 64;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t token = task.first_row + row / shared, head = task.kv_head * shared + row % shared;
        const float inverse = 1.0f / total[row];
        float* to = space.mixed + token * line + head * width;
        for (int64_t i = 0; i < width; ++i) to[i] = out[row * stride + i] * inverse;
    }
}

}  // namespace SLOTDECK_ISA
