// One step of the decoder, computed by all threads of a team. Compiled once for each instruction set.
#include "attention.h"
#include "product.h"
#include "sampling.h"
#include "team.h"
#include "types.h"
#include "vector.h"

extern "C" {
float cosf(float);
float sinf(float);
}

namespace SLOTDECK_ISA {

constexpr int64_t ROWS_AT_ONCE = 8;
constexpr int64_t ROW_CHUNK = 48;  // rows of one task, so that a tile of weights stays in the first cache

// Everything a thread needs to go through the step.
struct Context {
    const Model& model;
    const Step& step;
    const Workspace& space;
    Team* team;
    int thread, threads;
    float* scratch;
    int64_t hidden, attended, inner;  // padded to 64
    mutable int phase = 0;            // the same on all threads: they go through the same sequence
    mutable int64_t since = 0;        // end of the part before, on the thread that called
    mutable const Rows* rows;
};

// Calls `work(task)` for this thread's share of the tasks, and returns when all are done.
template <typename Work>
inline void share(const Context& c, int64_t tasks, Work work) {
    const int phase = c.phase++;
    int64_t done = 0;
    for (int64_t task; (task = team_next(c.team, phase, c.thread, tasks)) >= 0; ++done) work(task);
    if (done > 0) team_done(c.team, phase, done, tasks);
    team_wait(c.team, phase, tasks);
}

// Calls `work(tile, first row, number of rows)` for tiles x rows.
template <typename Work>
inline void share_tiles(const Context& c, int64_t tiles, int64_t rows, Work work) {
    share(c, tiles * ((rows + ROW_CHUNK - 1) / ROW_CHUNK), [&](int64_t task) {
        const int64_t first = task / tiles * ROW_CHUNK;
        work(task % tiles, first, rows - first < ROW_CHUNK ? rows - first : ROW_CHUNK);
    });
}

// Calls `work(row)`; a task is several rows, since one takes less time than handing it out.
template <typename Work>
inline void share_rows(const Context& c, int64_t rows, Work work) {
    share(c, (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, [&](int64_t task) {
        const int64_t last = (task + 1) * ROWS_AT_ONCE < rows ? (task + 1) * ROWS_AT_ONCE : rows;
        for (int64_t row = task * ROWS_AT_ONCE; row < last; ++row) work(row);
    });
}

inline QuantisedRows quantised(const Context& c, int64_t depth) {
    return {c.space.codes, c.space.scales, c.space.sums, depth};
}

// hidden -> norm -> quantised rows.
inline void norm(const Context& c, const float* weight) {
    const int64_t groups = c.hidden / GROUP;
    share_rows(c, c.rows->count, [&](int64_t row) {
        norm_row(c.space.hidden + row * c.hidden, weight, c.model.hidden, c.hidden, c.model.eps, c.scratch,
                 c.space.codes + row * c.hidden, c.space.scales + row * groups, c.space.sums + row * groups * 2);
    });
}

inline void embed(const Context& c) {
    const int64_t half = c.model.head_dim / 2;
    share_rows(c, c.step.tokens, [&](int64_t row) {
        const uint16_t* from = c.model.embedding + c.step.token_ids[row] * c.model.hidden;
        float* to = c.space.hidden + row * c.hidden;
        for (int64_t i = 0; i < c.model.hidden; ++i) to[i] = from_bf16(from[i]);
        for (int64_t i = c.model.hidden; i < c.hidden; ++i) to[i] = 0;
        for (int64_t i = 0; i < half; ++i) {
            const float angle = (float)c.step.positions[row] * c.model.inverse_frequencies[i];
            c.space.cosine[row * half + i] = cosf(angle);
            c.space.sine[row * half + i] = sinf(angle);
        }
        c.space.spoiled[row] = 0;
        // Beyond the heads, rows of the attention's result stay zero.
        for (int64_t i = (int64_t)c.model.heads * c.model.head_dim; i < c.attended; ++i)
            c.space.mixed[row * c.attended + i] = 0;
    });
}

// Queries, keys and values of one head at a time; rotary embedding; K and V go into the pool. In the last layer queries
// are kept of wanted tokens only. What the pool cannot hold would spoil the residual of its token, but there most have
// none any more, so it is looked for.
inline void project(const Context& c, const Layer& layer, int number) {
    const int32_t* row_of = number + 1 == c.model.layers ? c.space.row_of : nullptr;
    const Model& model = c.model;
    const int64_t stride = model.head_stride, half = model.head_dim / 2, tiles = stride / TILE;
    const float scale = 1.0f / __builtin_sqrtf((float)model.head_dim);
    const QuantisedRows rows = quantised(c, c.hidden);
    const Stored keys = stored(model, c.step, c.step.keys, c.step.key_scales, number);
    const Stored values = stored(model, c.step, c.step.values, c.step.value_scales, number);
    const int64_t pool = (int64_t)c.step.num_blocks * model.block_size;  // tokens in the pool
    share_tiles(c, model.heads + 2 * model.kv_heads, c.step.tokens, [&](int64_t head, int64_t first, int64_t count) {
        float* lines = c.scratch + ROW_CHUNK * TILE;  // [count, stride]
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
                keep(values, (head - model.heads - model.kv_heads) * pool + c.step.slots[token], line);
            else if (key)
                keep(keys, (head - model.heads) * pool + c.step.slots[token], line);
            else if (to >= 0)
                memcpy(c.space.query + (to * model.heads + head) * stride, line, (size_t)stride * 4);
            if (row_of != nullptr && (value || key) && !holds(keys, line))
                __atomic_store_n(c.space.spoiled + token, (uint8_t)1, __ATOMIC_RELAXED);
        }
    });
}

inline bool finite_row(const Context& c, int64_t row) {
    Floats spoiled = Floats{};
    for (int64_t i = 0; i < c.hidden; i += LANES) {
        const Floats value = load<Floats>(c.space.hidden + row * c.hidden + i);
        spoiled += value - value;
    }
    return sum(spoiled) == 0;
}

// Nobody reads what the last layer makes of other tokens than the wanted ones, but for K and V, which are in the pool:
// from here on there are only those rows.
inline void keep_wanted(const Context& c) {
    share_rows(c, c.step.tokens,
               [&](int64_t row) { c.step.finite[row] = finite_row(c, row) && c.space.spoiled[row] == 0; });
    share(c, 1, [&](int64_t) {
        for (int64_t row = 0; row < c.space.last.count; ++row)
            memmove(c.space.hidden + row * c.hidden, c.space.hidden + c.space.last.tokens[row] * c.hidden,
                    (size_t)c.hidden * 4);
    });
    c.rows = &c.space.last;
}

inline void mix_keys(const Context& c, int number) {
    const Rows& rows = *c.rows;
    share(c, rows.num_tasks, [&](int64_t task) {
        const AttentionTask& after = rows.tasks[task + 1 < rows.num_tasks ? task + 1 : task];
        attend(c.model, c.step, c.space, rows.tasks[task], after, number, c.scratch);
    });
    const bool quantised = whole_groups(c.model);  // by the tasks, but for rows whose strips were computed apart
    if (quantised && !rows.any_apart) return;
    share_rows(c, rows.count, [&](int64_t row) {
        const bool apart = rows.apart[row].strips > 0;
        if (apart) add_strips(c.model, c.space, rows.apart[row], row, c.scratch);
        if (apart || !quantised) quantise_mixed(c.model, c.space, row, 0, c.attended);
    });
}

// hidden += rows x weights.
inline void add(const Context& c, const QuantisedRows& rows, const Product& weights) {
    const int64_t tiles = (c.model.hidden + TILE - 1) / TILE;
    share_tiles(c, tiles, c.rows->count, [&](int64_t tile, int64_t first, int64_t count) {
        product(rows, first, count, weights, tile, c.scratch);
        for (int64_t row = 0; row < count; ++row) {
            float* to = c.space.hidden + (first + row) * c.hidden + tile * TILE;
            for (int i = 0; i < TILE; i += LANES)
                store(to + i, load<Floats>(to + i) + load<Floats>(c.scratch + row * TILE + i));
        }
    });
}

// Gate and up, SiLU(gate) x up, quantised at once: a task makes whole groups of 64.
inline void gate(const Context& c, const Layer& layer) {
    const QuantisedRows rows = quantised(c, c.hidden);
    const int64_t groups = c.inner / GROUP;
    share_tiles(c, groups, c.rows->count, [&](int64_t group, int64_t first, int64_t count) {
        float* lines = c.scratch + ROW_CHUNK * TILE;  // [count, GROUP]
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
            quantise_row(lines + row * GROUP, GROUP, c.space.inner_codes + (first + row) * c.inner + group * GROUP,
                         c.space.inner_scales + (first + row) * groups + group,
                         c.space.inner_sums + ((first + row) * groups + group) * 2);
    });
}

inline float* logits_to_draw(const Context& c, int64_t row) {
    return c.space.draw_logits + row * padded(c.model.vocab, SUMMED);
}

// The head over the wanted tokens: the best token of some without writing their logits down, then logits of others, for
// the caller and to draw from.
inline void predict(const Context& c) {
    const Step& step = c.step;
    const int64_t with_logits = step.greedy + step.logit_rows, wanted = with_logits + step.draws;
    const int64_t groups = c.hidden / GROUP, vocab = c.model.vocab;
    share_rows(c, wanted, [&](int64_t row) {
        const int64_t token = row < step.greedy  ? step.greedy_tokens[row]
                              : row < with_logits ? step.logit_tokens[row - step.greedy]
                                                  : step.draw[row - with_logits].token;
        const int64_t from = c.space.row_of == nullptr ? token : c.space.row_of[token];
        norm_row(c.space.hidden + from * c.hidden, c.model.norm, c.model.hidden, c.hidden, c.model.eps, c.scratch,
                 c.space.codes + row * c.hidden, c.space.scales + row * groups, c.space.sums + row * groups * 2);
    });
    float* best_value = c.space.best_value + (int64_t)c.thread * step.greedy;
    int64_t* best_index = c.space.best_index + (int64_t)c.thread * step.greedy;
    uint8_t* bad = c.space.bad_logit + (int64_t)c.thread * step.greedy;
    const QuantisedRows rows = quantised(c, c.hidden);
    share_tiles(c, (vocab + TILE - 1) / TILE, wanted, [&](int64_t tile, int64_t first, int64_t count) {
        product(rows, first, count, c.model.head, tile, c.scratch);
        const int64_t column = tile * TILE, columns = vocab - column < TILE ? vocab - column : TILE;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = first + i;
            const float* line = c.scratch + i * TILE;
            if (row >= step.greedy) {
                float* to = row < with_logits ? step.logits + (row - step.greedy) * vocab
                                              : logits_to_draw(c, row - with_logits);
                memcpy(to + column, line, (size_t)columns * 4);
                continue;
            }
            float top = -__builtin_inff(), spoiled = 0;
            for (int64_t j = 0; j < columns; ++j) {
                top = line[j] > top ? line[j] : top;
                spoiled += line[j] - line[j];
            }
            if (spoiled != 0) bad[row] = 1;
            // Of equal logits the first token counts, whichever thread finds it first.
            if (top < best_value[row]) continue;
            int64_t at = 0;
            while (at < columns && line[at] != top) ++at;
            if (at < columns && (top > best_value[row] || column + at < best_index[row])) {
                best_value[row] = top;
                best_index[row] = column + at;
            }
        }
    });
    if (c.thread != 0) return;
    for (int64_t row = 0; row < step.greedy; ++row) {
        float value = -__builtin_inff();
        int64_t index = vocab;
        bool good = true;
        for (int thread = 0; thread < c.threads; ++thread) {
            const int64_t at = (int64_t)thread * step.greedy + row;
            const float other = c.space.best_value[at];
            if (c.space.bad_logit[at]) good = false;
            if (other > value || (other == value && c.space.best_index[at] < index)) {
                value = other;
                index = c.space.best_index[at];
            }
        }
        step.best[row] = good && index < vocab ? index : -1;
    }
}

// A part has ended: its time, waiting for the other threads included, is counted. Some 200 looks at the clock in a
// step take microseconds.
inline void lap(const Context& c, Part part) {
    if (c.thread != 0) return;
    const int64_t now = team_clock();
    __atomic_fetch_add(c.space.nanoseconds + part, now - c.since, __ATOMIC_RELAXED);
    c.since = now;
}

inline void forward(const Context& c) {
    if (c.thread == 0) c.since = team_clock();
    embed(c);
    lap(c, PART_EMBED);
    for (int number = 0; number < c.model.layers; ++number) {
        const Layer& layer = c.model.layer[number];
        norm(c, layer.input_norm);
        lap(c, PART_NORM);
        project(c, layer, number);
        if (number + 1 == c.model.layers && c.space.row_of != nullptr) keep_wanted(c);
        lap(c, PART_QKV);
        mix_keys(c, number);
        lap(c, PART_ATTENTION);
        add(c, quantised(c, c.attended), layer.output);
        lap(c, PART_OUTPUT);
        norm(c, layer.mlp_norm);
        lap(c, PART_NORM);
        gate(c, layer);
        lap(c, PART_GATE_UP);
        add(c, {c.space.inner_codes, c.space.inner_scales, c.space.inner_sums, c.inner}, layer.down);
        lap(c, PART_DOWN);
    }
    share_rows(c, c.rows->count, [&](int64_t row) {
        c.step.finite[c.rows->tokens == nullptr ? row : c.rows->tokens[row]] = finite_row(c, row);
    });
    predict(c);
    lap(c, PART_HEAD);
    share(c, c.step.draws, [&](int64_t row) {
        c.step.drawn[row] = draw(logits_to_draw(c, row), c.model.vocab, c.step.draw[row]);
    });
    lap(c, PART_DRAW);
}

}  // namespace SLOTDECK_ISA

#define SLOTDECK_JOIN(a, b) a##b
#define SLOTDECK_NAME(prefix, isa) SLOTDECK_JOIN(prefix, isa)

extern "C" {

// One thread's part of a step. `scratch` is this thread's own.
void SLOTDECK_NAME(forward_, SLOTDECK_ISA)(const Model* model, const Step* step, const Workspace* space, Team* team,
                                           int thread, int threads) {
    using namespace SLOTDECK_ISA;
    const Context context{*model,
                          *step,
                          *space,
                          team,
                          thread,
                          threads,
                          (float*)(space->scratch + thread * space->scratch_bytes),
                          padded(model->hidden, GROUP),
                          attended(*model),
                          padded(model->inner, GROUP),
                          0,
                          0,
                          &space->all};
    forward(context);
}

// Floats of scratch one thread needs.
int64_t SLOTDECK_NAME(scratch_, SLOTDECK_ISA)(const Model* model) {
    using namespace SLOTDECK_ISA;
    const int64_t shared = model->heads / model->kv_heads;
    const int64_t attention = attention_scratch(CHUNK * shared, model->head_stride);
    const int64_t tiles = ROW_CHUNK * (TILE + (model->head_stride > GROUP ? model->head_stride : GROUP));
    const int64_t rows = padded(model->hidden, GROUP);
    const int64_t most = attention > tiles ? attention : tiles;
    return padded(most > rows ? most : rows, 64);
}

// A thread's part of drawing from rows of logits, for tests: logits [count, vocab padded to SUMMED], see `draw`.
void SLOTDECK_NAME(draw_, SLOTDECK_ISA)(float* logits, int64_t vocab, const Draw* how, int64_t count, int64_t* drawn,
                                        Team* team, int thread) {
    using namespace SLOTDECK_ISA;
    for (int64_t row; (row = team_next(team, 0, thread, count)) >= 0; team_done(team, 0, 1, count))
        drawn[row] = draw(logits + row * padded(vocab, SUMMED), vocab, how[row]);
    team_wait(team, 0, count);
}

// The product alone, for tests and for choosing the faster path: rows [count, depth] fp32, out [count, columns].
void SLOTDECK_NAME(product_, SLOTDECK_ISA)(const Product* weights, const float* values, int64_t count, int8_t* codes,
                                           float* scales, int32_t* sums, float* out, Team* team, int thread) {
    using namespace SLOTDECK_ISA;
    const int64_t depth = weights->depth, groups = depth / GROUP, tiles = weights->columns / TILE;
    for (int64_t row; (row = team_next(team, 0, thread, count)) >= 0; team_done(team, 0, 1, count))
        quantise_row(values + row * depth, depth, codes + row * depth, scales + row * groups, sums + row * groups * 2);
    team_wait(team, 0, count);
    const QuantisedRows rows{codes, scales, sums, depth};
    alignas(64) float block[ROW_CHUNK * TILE];
    const int64_t tasks = tiles * ((count + ROW_CHUNK - 1) / ROW_CHUNK);
    for (int64_t task; (task = team_next(team, 1, thread, tasks)) >= 0; team_done(team, 1, 1, tasks)) {
        const int64_t first = task / tiles * ROW_CHUNK, tile = task % tiles;
        const int64_t here = count - first < ROW_CHUNK ? count - first : ROW_CHUNK;
        product(rows, first, here, *weights, tile, block);
        for (int64_t row = 0; row < here; ++row)
            memcpy(out + (first + row) * weights->columns + tile * TILE, block + row * TILE, TILE * 4);
    }
}
}
