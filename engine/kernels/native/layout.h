// Who attends to what: how the attention of a step is cut into tasks for the threads. For api.cpp alone, since it uses
// the standard library.
#pragma once

#include <vector>

#include "types.h"

constexpr int64_t TASKS_PER_THREAD = 2;  // of attention: a decode with more to read than such a task has is shared out

// The strips of keys that a span's tokens from `start` on see, `count` of them.
struct Strips {
    int32_t first, number;

    Strips(const Model& model, int64_t start, int64_t count) {
        first = (int32_t)(oldest_key(model, start) / STRIP);
        number = (int32_t)((start + count + STRIP - 1) / STRIP) - first;
    }
};

// Tokens of a span that follow each other, and the row of the first.
struct Query {
    int32_t span, first_row, start, count;
};

// How attention is cut: into at most so many tasks, with so many places for strips computed apart; a decode's strips
// make even pieces of at most `piece`.
struct Attention {
    int64_t tasks = 0, places = 0, piece = 0;

    Attention(const Model& model, const std::vector<Query>& queries, int64_t threads) {
        int64_t strips = 0;
        for (const Query& query : queries)
            for (int32_t at = 0; at < query.count; at += CHUNK)
                strips += Strips(model, query.start + at, 1).number * model.kv_heads;
        piece = (strips + threads * TASKS_PER_THREAD - 1) / (threads * TASKS_PER_THREAD);
        for (const Query& query : queries) {
            const int64_t own = pieces(model, query);
            tasks += (query.count + CHUNK - 1) / CHUNK * own * model.kv_heads;
            if (own > 1) places += Strips(model, query.start, 1).number * model.kv_heads;
        }
    }

    int32_t pieces(const Model& model, const Query& query) const {
        return query.count > 1 ? 1 : (int32_t)((Strips(model, query.start, 1).number + piece - 1) / piece);
    }

    // Long chunks first, so that the last tasks to be taken are small. Returns the number of tasks.
    int32_t lay_out(const Model& model, const std::vector<Query>& queries, AttentionTask* list, Apart* apart) const {
        int32_t number = 0, place = 0;
        for (int longer = 1; longer >= 0; --longer)
            for (const Query& query : queries) {
                if ((query.count > 1) != (longer == 1)) continue;
                const int32_t own = pieces(model, query);
                for (int32_t at = (query.count - 1) / CHUNK * CHUNK; at >= 0; at -= CHUNK) {
                    const int32_t row = query.first_row + at, start = query.start + at;
                    const int32_t here = query.count - at < CHUNK ? query.count - at : CHUNK;
                    const Strips strips(model, start, here);
                    for (int32_t i = 0; i < here; ++i) apart[row + i] = {place, own > 1 ? strips.number : 0};
                    for (int32_t head = 0; head < model.kv_heads; ++head)
                        for (int32_t i = 0; i < own; ++i) {
                            const int32_t from = i * strips.number / own, to = (i + 1) * strips.number / own;
                            list[number++] = {query.span, row, start, here, head, strips.first + from, to - from,
                                              own > 1 ? place : -1};
                            if (own > 1) place += to - from;
                        }
                }
            }
        return number;
    }
};

// Who attends: all tokens of the step, and in the last layer the wanted ones alone, each by itself.
struct Queries {
    std::vector<Query> all, last;
    std::vector<int32_t> row_of, tokens;  // see Rows and Workspace

    void gather(const Step& step) {
        all.clear();
        last.clear();
        tokens.clear();
        row_of.assign((size_t)step.tokens, -1);
        for (int32_t i = 0; i < step.greedy; ++i) row_of[(size_t)step.greedy_tokens[i]] = 0;
        for (int32_t i = 0; i < step.logit_rows; ++i) row_of[(size_t)step.logit_tokens[i]] = 0;
        for (int32_t i = 0; i < step.draws; ++i) row_of[(size_t)step.draw[i].token] = 0;
        int32_t token = 0;
        for (int32_t span = 0; span < step.spans; ++span) {
            all.push_back({span, token, step.span_start[span], step.span_count[span]});
            for (int32_t i = 0; i < step.span_count[span]; ++i, ++token) {
                if (row_of[(size_t)token] < 0) continue;
                const int32_t row = row_of[(size_t)token] = (int32_t)last.size();
                last.push_back({span, row, step.span_start[span] + i, 1});
                tokens.push_back(token);
            }
        }
    }
};
