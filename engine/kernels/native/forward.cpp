// One step of the decoder, computed by all threads of a pool. This file is compiled once for each instruction set.
#include "attention.h"
#include "product.h"
#include "sampling.h"
#include "thread_pool.h"
#include "types.h"
#include "vector.h"

extern "C" {
float cosf(float);
float sinf(float);
}

namespace SLOTDECK_ISA {

constexpr int64_t ROWS_PER_TASK = 8;  // where a task is rows alone
constexpr int64_t ROW_TILE = 48;  // rows of one task of a product: so few that a tile of weights stays in the L1 cache

// What a thread needs to compute its part of the step.
struct Context {
    const Model& model;
    const Step& step;
    const Workspace& space;
    ThreadPool* thread_pool;
    int thread, threads;
    float* scratch;
    int64_t hidden, attended, intermediate;  // padded to 64
    mutable int phase = 0;                   // the same on all threads, since all go through the same sequence
    mutable int64_t since = 0;               // when the previous part ended; used by the calling thread
    mutable const Rows* rows;
};

// Calls `work(task)` for this thread's share of the tasks. Returns when the tasks of all threads are done.
template <typename Work>
inline void parallel_for(const Context& c, int64_t tasks, Work work) {
    const int phase = c.phase++;
    int64_t done = 0;
    for (int64_t task; (task = thread_pool_next_task(c.thread_pool, phase, c.thread, tasks)) >= 0; ++done) work(task);
    if (done > 0) thread_pool_finish_tasks(c.thread_pool, phase, done, tasks);
    thread_pool_wait(c.thread_pool, phase, tasks);
}

// Calls `work(tile, first row, number of rows)` for tiles x rows.
template <typename Work>
inline void parallel_for_tiles(const Context& c, int64_t tiles, int64_t rows, Work work) {
    parallel_for(c, tiles * ((rows + ROW_TILE - 1) / ROW_TILE), [&](int64_t task) {
        const int64_t first = task / tiles * ROW_TILE;
        work(task % tiles, first, rows - first < ROW_TILE ? rows - first : ROW_TILE);
    });
}

// Calls `work(row)`. A task is several rows, since one row takes less time than handing out a task.
template <typename Work>
inline void parallel_for_rows(const Context& c, int64_t rows, Work work) {
    parallel_for(c, (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, [&](int64_t task) {
        const int64_t last = (task + 1) * ROWS_PER_TASK < rows ? (task + 1) * ROWS_PER_TASK : rows;
        for (int64_t row = task * ROWS_PER_TASK; row < last; ++row) work(row);
    });
}

inline QuantisedRows quantised(const Context& c, int64_t depth) {
    return {c.space.codes, c.space.scales, c.space.sums, depth};
}

// hidden -> norm -> quantised rows.
inline void norm(const Context& c, const float* weight) {
    const int64_t groups = c.hidden / GROUP;
    parallel_for_rows(c, c.rows->count, [&](int64_t row) {
        norm_row(c.space.hidden + row * c.hidden, weight, c.model.hidden, c.hidden, c.model.eps, c.scratch,
                 c.space.codes + row * c.hidden, c.space.scales + row * groups, c.space.sums + row * groups * 2);
    });
}

inline void embed(const Context& c) {
    const int64_t half = c.model.head_dim / 2;
    parallel_for_rows(c, c.step.num_tokens, [&](int64_t row) {
        const uint16_t* from = c.model.embedding + c.step.token_ids[row] * c.model.hidden;
        float* to = c.space.hidden + row * c.hidden;
        for (int64_t i = 0; i < c.model.hidden; ++i) to[i] = from_bf16(from[i]);
        for (int64_t i = c.model.hidden; i < c.hidden; ++i) to[i] = 0;
        for (int64_t i = 0; i < half; ++i) {
            const float angle = (float)c.step.positions[row] * c.model.inverse_frequencies[i];
            c.space.cosine[row * half + i] = cosf(angle);
            c.space.sine[row * half + i] = sinf(angle);
        }
        c.space.bad_kv[row] = 0;
        // Beyond the heads, rows of the attention output stay zero.
        for (int64_t i = (int64_t)c.model.heads * c.model.head_dim; i < c.attended; ++i)
            c.space.attended[row * c.attended + i] = 0;
    });
}

// Computes queries, keys and values, one head at a time, applies the rotary embedding, and stores K and V in the pool.
// In the last layer it keeps only the queries of wanted tokens. A value that the pool cannot hold shows up in the
// residual of its token, but in the last layer most tokens have no residual any more, so it is checked here.
inline void project_qkv(const Context& c, const Layer& layer, int number) {
    const int32_t* row_of = number + 1 == c.model.layers ? c.space.row_of : nullptr;
    const Model& model = c.model;
    const int64_t stride = model.head_stride, half = model.head_dim / 2, tiles = stride / TILE;
    const float scale = 1.0f / __builtin_sqrtf((float)model.head_dim);
    const QuantisedRows rows = quantised(c, c.hidden);
    const PoolTensor keys = pool_tensor(model, c.step, c.step.keys, c.step.key_scales, number);
    const PoolTensor values = pool_tensor(model, c.step, c.step.values, c.step.value_scales, number);
    const int64_t pool = (int64_t)c.step.num_blocks * model.block_size;  // tokens in the pool
    parallel_for_tiles(
        c, model.heads + 2 * model.kv_heads, c.step.num_tokens, [&](int64_t head, int64_t first, int64_t count) {
            float* lines = c.scratch + ROW_TILE * TILE;  // [count, stride]
            for (int64_t tile = 0; tile < tiles; ++tile) {
                product(rows, first, count, layer.qkv, head * tiles + tile, c.scratch);
                for (int64_t row = 0; row < count; ++row)
                    memcpy(lines + row * stride + tile * TILE, c.scratch + row * TILE, TILE * 4);
            }
            const bool value = head >= model.heads + model.kv_heads, key = !value && head >= model.heads;
            for (int64_t row = 0; row < count; ++row) {
                const int64_t token = first + row;
                float* line = lines + row * stride;
                if (!value) {
                    const float *cosine = c.space.cosine + token * half, *sine = c.space.sine + token * half;
                    const float factor = key ? 1.0f : scale;
                    for (int64_t i = 0; i < half; ++i) {
                        const float a = line[i], b = line[i + half];
                        line[i] = (a * cosine[i] - b * sine[i]) * factor;
                        line[i + half] = (b * cosine[i] + a * sine[i]) * factor;
                    }
                }
                const int64_t to = row_of == nullptr ? token : row_of[token];
                if (value)
                    store_row(values, (head - model.heads - model.kv_heads) * pool + c.step.slot_mapping[token], line);
                else if (key)
                    store_row(keys, (head - model.heads) * pool + c.step.slot_mapping[token], line);
                else if (to >= 0)
                    memcpy(c.space.query + (to * model.heads + head) * stride, line, (size_t)stride * 4);
                if (row_of != nullptr && (value || key) && !representable(keys, line))
                    __atomic_store_n(c.space.bad_kv + token, (uint8_t)1, __ATOMIC_RELAXED);
            }
        });
}

inline bool finite_row(const Context& c, int64_t row) {
    Floats not_finite = Floats{};
    for (int64_t i = 0; i < c.hidden; i += LANES) {
        const Floats value = load<Floats>(c.space.hidden + row * c.hidden + i);
        not_finite += value - value;
    }
    return sum(not_finite) == 0;
}

// Of the last layer, only the results for wanted tokens are read, apart from K and V, which are in the pool by now. So
// from here on the step computes only the wanted rows.
inline void keep_wanted_rows(const Context& c) {
    parallel_for_rows(c, c.step.num_tokens,
                      [&](int64_t row) { c.step.finite[row] = finite_row(c, row) && c.space.bad_kv[row] == 0; });
    parallel_for(c, 1, [&](int64_t) {
        for (int64_t row = 0; row < c.space.last.count; ++row)
            memmove(c.space.hidden + row * c.hidden, c.space.hidden + c.space.last.tokens[row] * c.hidden,
                    (size_t)c.hidden * 4);
    });
    c.rows = &c.space.last;
}

inline void attention(const Context& c, int number) {
    const Rows& rows = *c.rows;
    parallel_for(c, rows.num_tasks, [&](int64_t task) {
        const AttentionTask& after = rows.tasks[task + 1 < rows.num_tasks ? task + 1 : task];
        attend(c.model, c.step, c.space, rows.tasks[task], after, number, c.scratch);
    });
    const bool quantised = whole_groups(c.model);  // by the tasks, except rows whose splits are merged here
    if (quantised && !rows.any_split) return;
    parallel_for_rows(c, rows.count, [&](int64_t row) {
        const bool split = rows.split_rows[row].splits > 0;
        if (split) merge_splits(c.model, c.space, rows.split_rows[row], row, c.scratch);
        if (split || !quantised) quantise_attention(c.model, c.space, row, 0, c.attended);
    });
}

// hidden += rows x weights.
inline void add(const Context& c, const QuantisedRows& rows, const Product& weights) {
    const int64_t tiles = (c.model.hidden + TILE - 1) / TILE;
    parallel_for_tiles(c, tiles, c.rows->count, [&](int64_t tile, int64_t first, int64_t count) {
        product(rows, first, count, weights, tile, c.scratch);
        for (int64_t row = 0; row < count; ++row) {
            float* to = c.space.hidden + (first + row) * c.hidden + tile * TILE;
            for (int i = 0; i < TILE; i += LANES)
                store(to + i, load<Floats>(to + i) + load<Floats>(c.scratch + row * TILE + i));
        }
    });
}

// Gate and up, SiLU(gate) x up, quantised in the same task: a task computes whole groups of 64.
inline void gate(const Context& c, const Layer& layer) {
    const QuantisedRows rows = quantised(c, c.hidden);
    const int64_t groups = c.intermediate / GROUP;
    parallel_for_tiles(c, groups, c.rows->count, [&](int64_t group, int64_t first, int64_t count) {
        float* lines = c.scratch + ROW_TILE * TILE;  // [count, GROUP]
        for (int64_t part = 0; part < GROUP / PANEL; ++part) {
            product(rows, first, count, layer.gate_up, group * (GROUP / PANEL) + part, c.scratch);
            for (int64_t row = 0; row < count; ++row)
                for (int i = 0; i < PANEL; i += LANES) {
                    const Floats gated = load<Floats>(c.scratch + row * TILE + i);
                    const Floats up = load<Floats>(c.scratch + row * TILE + PANEL + i);
                    store(lines + row * GROUP + part * PANEL + i, gated / (1.0f + exponential(-gated)) * up);
                }
        }
        for (int64_t row = 0; row < count; ++row)
            quantise_row(lines + row * GROUP, GROUP,
                         c.space.intermediate_codes + (first + row) * c.intermediate + group * GROUP,
                         c.space.intermediate_scales + (first + row) * groups + group,
                         c.space.intermediate_sums + ((first + row) * groups + group) * 2);
    });
}

inline float* logits_to_draw(const Context& c, int64_t row) {
    return c.space.draw_logits + row * padded(c.model.vocab, SUM_BLOCK);
}

// The head for the wanted rows. For greedy rows it finds the most likely token without writing the logits to memory.
// For the others it writes the logits, for the caller or to draw from.
inline void compute_head(const Context& c) {
    const Step& step = c.step;
    const int64_t with_logits = step.num_greedy + step.num_logit_rows, wanted = with_logits + step.num_draws;
    const int64_t groups = c.hidden / GROUP, vocab = c.model.vocab;
    parallel_for_rows(c, wanted, [&](int64_t row) {
        const int64_t token = row < step.num_greedy ? step.greedy_rows[row]
                              : row < with_logits   ? step.logit_rows[row - step.num_greedy]
                                                    : step.draws[row - with_logits].row;
        const int64_t from = c.space.row_of == nullptr ? token : c.space.row_of[token];
        norm_row(c.space.hidden + from * c.hidden, c.model.norm, c.model.hidden, c.hidden, c.model.eps, c.scratch,
                 c.space.codes + row * c.hidden, c.space.scales + row * groups, c.space.sums + row * groups * 2);
    });
    float* greedy_value = c.space.greedy_value + (int64_t)c.thread * step.num_greedy;
    int64_t* greedy_index = c.space.greedy_index + (int64_t)c.thread * step.num_greedy;
    uint8_t* bad = c.space.bad_logit + (int64_t)c.thread * step.num_greedy;
    const QuantisedRows rows = quantised(c, c.hidden);
    parallel_for_tiles(c, (vocab + TILE - 1) / TILE, wanted, [&](int64_t tile, int64_t first, int64_t count) {
        product(rows, first, count, c.model.head, tile, c.scratch);
        const int64_t column = tile * TILE, columns = vocab - column < TILE ? vocab - column : TILE;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = first + i;
            const float* line = c.scratch + i * TILE;
            if (row >= step.num_greedy) {
                float* to = row < with_logits ? step.logits + (row - step.num_greedy) * vocab
                                              : logits_to_draw(c, row - with_logits);
                memcpy(to + column, line, (size_t)columns * 4);
                continue;
            }
            float top = -__builtin_inff(), not_finite = 0;
            for (int64_t j = 0; j < columns; ++j) {
                top = line[j] > top ? line[j] : top;
                not_finite += line[j] - line[j];
            }
            if (not_finite != 0) bad[row] = 1;
            // Of equal logits the first token wins, whichever thread finds it.
            if (top < greedy_value[row]) continue;
            int64_t at = 0;
            while (at < columns && line[at] != top) ++at;
            if (at < columns && (top > greedy_value[row] || column + at < greedy_index[row])) {
                greedy_value[row] = top;
                greedy_index[row] = column + at;
            }
        }
    });
    if (c.thread != 0) return;
    for (int64_t row = 0; row < step.num_greedy; ++row) {
        float value = -__builtin_inff();
        int64_t index = vocab;
        bool good = true;
        for (int thread = 0; thread < c.threads; ++thread) {
            const int64_t at = (int64_t)thread * step.num_greedy + row;
            const float other = c.space.greedy_value[at];
            if (c.space.bad_logit[at]) good = false;
            if (other > value || (other == value && c.space.greedy_index[at] < index)) {
                value = other;
                index = c.space.greedy_index[at];
            }
        }
        step.greedy[row] = good && index < vocab ? index : -1;
    }
}

// Adds the time since the previous call to a part, waiting for other threads included. Reading the clock some 200 times
// in a step takes microseconds.
inline void record_time(const Context& c, Part part) {
    if (c.thread != 0) return;
    const int64_t now = monotonic_nanoseconds();
    __atomic_fetch_add(c.space.nanoseconds + part, now - c.since, __ATOMIC_RELAXED);
    c.since = now;
}

inline void forward(const Context& c) {
    if (c.thread == 0) c.since = monotonic_nanoseconds();
    embed(c);
    record_time(c, PART_EMBED);
    for (int number = 0; number < c.model.layers; ++number) {
        const Layer& layer = c.model.layer[number];
        norm(c, layer.input_norm);
        record_time(c, PART_NORM);
        project_qkv(c, layer, number);
        if (number + 1 == c.model.layers && c.space.row_of != nullptr) keep_wanted_rows(c);
        record_time(c, PART_QKV);
        attention(c, number);
        record_time(c, PART_ATTENTION);
        add(c, quantised(c, c.attended), layer.output);
        record_time(c, PART_OUTPUT);
        norm(c, layer.mlp_norm);
        record_time(c, PART_NORM);
        gate(c, layer);
        record_time(c, PART_GATE_UP);
        add(c, {c.space.intermediate_codes, c.space.intermediate_scales, c.space.intermediate_sums, c.intermediate},
            layer.down);
        record_time(c, PART_DOWN);
    }
    parallel_for_rows(c, c.rows->count, [&](int64_t row) {
        c.step.finite[c.rows->tokens == nullptr ? row : c.rows->tokens[row]] = finite_row(c, row);
    });
    compute_head(c);
    record_time(c, PART_HEAD);
    parallel_for(c, c.step.num_draws, [&](int64_t row) {
        c.step.drawn[row] = draw(logits_to_draw(c, row), c.model.vocab, c.step.draws[row]);
    });
    record_time(c, PART_DRAW);
}

}  // namespace SLOTDECK_ISA

#define SLOTDECK_JOIN(a, b) a##b
#define SLOTDECK_NAME(prefix, isa) SLOTDECK_JOIN(prefix, isa)

extern "C" {

// One thread's part of a step.
void SLOTDECK_NAME(forward_, SLOTDECK_ISA)(const Model* model, const Step* step, const Workspace* space,
                                           ThreadPool* thread_pool, int thread, int threads) {
    using namespace SLOTDECK_ISA;
    const Context context{*model,
                          *step,
                          *space,
                          thread_pool,
                          thread,
                          threads,
                          (float*)(space->scratch + thread * space->scratch_bytes),
                          padded(model->hidden, GROUP),
                          attended(*model),
                          padded(model->intermediate, GROUP),
                          0,
                          0,
                          &space->all};
    forward(context);
}

// Floats of scratch that one thread needs.
int64_t SLOTDECK_NAME(scratch_, SLOTDECK_ISA)(const Model* model) {
    using namespace SLOTDECK_ISA;
    const int64_t shared = model->heads / model->kv_heads;
    const int64_t attention = attention_scratch(QUERY_TILE * shared, model->head_stride);
    const int64_t tiles = ROW_TILE * (TILE + (model->head_stride > GROUP ? model->head_stride : GROUP));
    const int64_t rows = padded(model->hidden, GROUP);
    const int64_t largest = attention > tiles ? attention : tiles;
    return padded(largest > rows ? largest : rows, 64);
}

// One thread's part of drawing from rows of logits, for tests. logits: [count, vocab padded to SUM_BLOCK]; see `draw`.
void SLOTDECK_NAME(draw_, SLOTDECK_ISA)(float* logits, int64_t vocab, const Draw* how, int64_t count, int64_t* drawn,
                                        ThreadPool* thread_pool, int thread) {
    using namespace SLOTDECK_ISA;
    for (int64_t row; (row = thread_pool_next_task(thread_pool, 0, thread, count)) >= 0;
         thread_pool_finish_tasks(thread_pool, 0, 1, count))
        drawn[row] = draw(logits + row * padded(vocab, SUM_BLOCK), vocab, how[row]);
    thread_pool_wait(thread_pool, 0, count);
}

// The product alone, for tests and measurements. rows: [count, depth] fp32, out: [count, columns].
void SLOTDECK_NAME(product_, SLOTDECK_ISA)(const Product* weights, const float* values, int64_t count, int8_t* codes,
                                           float* scales, int32_t* sums, float* out, ThreadPool* thread_pool,
                                           int thread) {
    using namespace SLOTDECK_ISA;
    const int64_t depth = weights->depth, groups = depth / GROUP, tiles = weights->columns / TILE;
    for (int64_t row; (row = thread_pool_next_task(thread_pool, 0, thread, count)) >= 0;
         thread_pool_finish_tasks(thread_pool, 0, 1, count))
        quantise_row(values + row * depth, depth, codes + row * depth, scales + row * groups, sums + row * groups * 2);
    thread_pool_wait(thread_pool, 0, count);
    const QuantisedRows rows{codes, scales, sums, depth};
    alignas(64) float block[ROW_TILE * TILE];
    const int64_t tasks = tiles * ((count + ROW_TILE - 1) / ROW_TILE);
    for (int64_t task; (task = thread_pool_next_task(thread_pool, 1, thread, tasks)) >= 0;
         thread_pool_finish_tasks(thread_pool, 1, 1, tasks)) {
        const int64_t first = task / tiles * ROW_TILE, tile = task % tiles;
        const int64_t here = count - first < ROW_TILE ? count - first : ROW_TILE;
        product(rows, first, here, *weights, tile, block);
        for (int64_t row = 0; row < here; ++row)
            memcpy(out + (first + row) * weights->columns + tile * TILE, block + row * TILE, TILE * 4);
    }
}
}
