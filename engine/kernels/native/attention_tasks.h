// Cuts the attention of a step into tasks for the threads. Only api.cpp includes this file, since it uses the standard
// library.
#pragma once

#include <vector>

#include "types.h"

// Attention tasks that each thread should get at least. A decode that reads more than one such task does is cut.
constexpr int64_t TASKS_PER_THREAD = 2;

// The splits of keys that `count` tokens of a span see, from position `start` on.
struct Splits {
    int32_t first, number;

    Splits(const Model& model, int64_t start, int64_t count) {
        first = (int32_t)(oldest_key(model, start) / SPLIT);
        number = (int32_t)((start + count + SPLIT - 1) / SPLIT) - first;
    }
};

// Consecutive tokens of a span, and the row of the first one.
struct Query {
    int32_t span, first_row, start, count;
};

// How the attention of a step is cut: upper bounds for the number of tasks and of partial results, and the largest
// number of splits that one task of a decode computes.
struct AttentionPlan {
    int64_t tasks = 0, partials = 0, max_splits = 0;

    AttentionPlan(const Model& model, const std::vector<Query>& queries, int64_t threads) {
        int64_t splits = 0;
        for (const Query& query : queries)
            for (int32_t at = 0; at < query.count; at += QUERY_TILE)
                splits += Splits(model, query.start + at, 1).number * model.kv_heads;
        max_splits = (splits + threads * TASKS_PER_THREAD - 1) / (threads * TASKS_PER_THREAD);
        for (const Query& query : queries) {
            const int64_t own = pieces(model, query);
            tasks += (query.count + QUERY_TILE - 1) / QUERY_TILE * own * model.kv_heads;
            if (own > 1) partials += Splits(model, query.start, 1).number * model.kv_heads;
        }
    }

    // Tasks per KV head for the tokens of a query.
    int32_t pieces(const Model& model, const Query& query) const {
        return query.count > 1 ? 1 : (int32_t)((Splits(model, query.start, 1).number + max_splits - 1) / max_splits);
    }

    // Writes the tasks and returns their number. Long chunks come first, so that the last tasks are small.
    int32_t make_tasks(const Model& model, const std::vector<Query>& queries, AttentionTask* list,
                       SplitRow* split_rows) const {
        int32_t number = 0, partial = 0;
        for (int longer = 1; longer >= 0; --longer)
            for (const Query& query : queries) {
                if ((query.count > 1) != (longer == 1)) continue;
                const int32_t own = pieces(model, query);
                for (int32_t at = (query.count - 1) / QUERY_TILE * QUERY_TILE; at >= 0; at -= QUERY_TILE) {
                    const int32_t row = query.first_row + at, start = query.start + at;
                    const int32_t here = query.count - at < QUERY_TILE ? query.count - at : QUERY_TILE;
                    const Splits splits(model, start, here);
                    for (int32_t i = 0; i < here; ++i) split_rows[row + i] = {partial, own > 1 ? splits.number : 0};
                    for (int32_t head = 0; head < model.kv_heads; ++head)
                        for (int32_t i = 0; i < own; ++i) {
                            const int32_t from = i * splits.number / own, to = (i + 1) * splits.number / own;
                            list[number++] = {query.span, row,
                                              start,      here,
                                              head,       splits.first + from,
                                              to - from,  own > 1 ? partial : -1};
                            if (own > 1) partial += to - from;
                        }
                }
            }
        return number;
    }
};

// The tokens that attend: all tokens of the step, and in the last layer the wanted ones alone, each by itself.
struct Queries {
    std::vector<Query> all, last;
    std::vector<int32_t> row_of, tokens;  // see Rows and Workspace

    void gather(const Step& step) {
        all.clear();
        last.clear();
        tokens.clear();
        row_of.assign((size_t)step.num_tokens, -1);
        for (int32_t i = 0; i < step.num_greedy; ++i) row_of[(size_t)step.greedy_rows[i]] = 0;
        for (int32_t i = 0; i < step.num_logit_rows; ++i) row_of[(size_t)step.logit_rows[i]] = 0;
        for (int32_t i = 0; i < step.num_draws; ++i) row_of[(size_t)step.draws[i].row] = 0;
        int32_t token = 0;
        for (int32_t span = 0; span < step.num_spans; ++span) {
            all.push_back({span, token, step.span_starts[span], step.span_counts[span]});
            for (int32_t i = 0; i < step.span_counts[span]; ++i, ++token) {
                if (row_of[(size_t)token] < 0) continue;
                const int32_t row = row_of[(size_t)token] = (int32_t)last.size();
                last.push_back({span, row, step.span_starts[span] + i, 1});
                tokens.push_back(token);
            }
        }
    }
};
