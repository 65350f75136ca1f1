// The structures that Python and the kernels share. engine/kernels/library.py mirrors those that Python fills in.
#pragma once

#include <cstdint>

#define SLOTDECK_ABI 6

// Sizes on which the code that prepares memory and tasks and the code that computes must agree.
constexpr int GROUP = 64;       // values that share a scale: activations, and 8-bit weights
constexpr int BLOCK = 32;       // 4-bit weights that share a step and a minimum
constexpr int QUERY_TILE = 16;  // query tokens of one attention task
constexpr int SPLIT = 256;  // keys of one split: splits can be computed by different threads and are merged afterwards
constexpr int SUM_BLOCK = 256;  // tokens whose weights are summed first when a token is drawn; rows are padded to it

// Static, as all functions in headers must be here. One copy shared by all instruction sets could be the widest set's.
static inline int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

// Weights [columns, depth] in panels of 16 columns. Both counts are padded: columns to 32, depth to 64. Padded weights
// are zero.
//
// 8 bits: within a panel, each 4 values of depth take 16 columns x 4 bytes, stored as value + 128. The scales (bf16)
// are a separate array, ordered by panel, group of 64, column.
//
// 4 bits: a weight is minimum + step x code, with code 0 to 15. Within a panel, each 32 values of depth take 256 bytes
// of codes, 16 steps and 16 minima (fp16). Among the codes, each 8 values of depth take 16 columns x 4 bytes: the first
// four values in the low halves of the bytes, the other four in the high halves. There are no separate scales.
struct Product {
    const uint8_t* codes;
    const uint16_t* scales;
    int32_t columns;
    int32_t depth;
    int32_t bits;
};

struct Layer {
    const float* input_norm;
    const float* mlp_norm;
    Product qkv;  // by head, each padded to head_stride columns: queries, keys, values
    Product output;
    Product gate_up;  // panels alternate: 16 columns of gate, the same 16 of up; padded to 64 of each
    Product down;
};

struct Model {
    int32_t hidden, heads, kv_heads, head_dim, intermediate, vocab, layers, block_size;
    float eps;
    int32_t head_stride;               // head_dim padded to 32
    int32_t window;                    // newest keys that a token sees, its own included; 0: all
    const uint16_t* embedding;         // bf16 [vocab, hidden]
    const float* norm;                 // padded to 64, as all norms
    const float* inverse_frequencies;  // [head_dim / 2]
    Product head;
    const Layer* layer;
};

// The first key that a token at `position` sees.
static inline int64_t oldest_key(const Model& model, int64_t position) {
    return model.window > 0 && position + 1 > model.window ? position + 1 - model.window : 0;
}

// Values in a row of the attention output: all heads, padded.
static inline int64_t attended(const Model& model) { return padded((int64_t)model.heads * model.head_dim, GROUP); }

enum KvType : int32_t { KV_FP32 = 0, KV_BF16 = 1, KV_FP16 = 2, KV_INT8 = 3 };

// How to draw one token. top_k 0, top_p 1 and min_p 0 are off.
struct Draw {
    int64_t row;  // of the batch: the token after this row is wanted
    uint64_t seed, position;
    int64_t top_k;
    double top_p;
    float inverse_temperature, min_p;
};

// One flat batch. Its spans cover the tokens in order; each span reads the keys of its own block table. A row is the
// index of a token in the batch.
struct Step {
    int32_t num_tokens, num_spans, num_greedy, num_logit_rows, num_draws;
    const int64_t* token_ids;
    const int64_t* positions;
    const int64_t* slot_mapping;  // block x block_size + offset
    const int32_t* span_starts;   // position of the first token
    const int32_t* span_counts;
    const int64_t* table_offsets;  // where the span's block table begins in blocks
    const int32_t* blocks;
    int32_t kv_type, num_blocks;
    void* const* keys;  // by layer: [kv_heads, num_blocks, block_size, head_dim]
    void* const* values;
    float* const* key_scales;  // by layer: [kv_heads, num_blocks, block_size]; int8 only
    float* const* value_scales;
    const int64_t* greedy_rows;  // [num_greedy]: rows whose most likely next token is wanted
    int64_t* greedy;             // [num_greedy]: the token, or -1 where a logit is not finite
    const int64_t* logit_rows;   // [num_logit_rows]: rows whose logits are wanted
    float* logits;               // [num_logit_rows, vocab]
    uint8_t* finite;             // [num_tokens]
    const Draw* draws;           // [num_draws]
    int64_t* drawn;              // [num_draws]: the token, or -1 where a logit is not finite
};

// The parts of a step whose time is measured, in the order of PARTS in engine/kernels/library.py.
enum Part : int32_t {
    PART_EMBED,
    PART_NORM,
    PART_QKV,
    PART_ATTENTION,
    PART_OUTPUT,
    PART_GATE_UP,
    PART_DOWN,
    PART_HEAD,
    PART_DRAW,
    PARTS
};

// One unit of attention: some query tokens of a span against `splits` splits of the keys of one KV head, from `split`
// on. If these are not all the splits that the tokens see, the result of each goes to the partial results from
// `partial` on. Otherwise `partial` is -1.
struct AttentionTask {
    int32_t span, first_row, start, count, kv_head, split, splits, partial;
};

// For a token whose splits were computed by separate tasks: the number of splits, and where its first partial result
// is. Those of the next KV head follow. For all other tokens the number is 0.
struct SplitRow {
    int32_t partial, splits;
};

// The rows that a part of the step computes: all tokens, or in the last layer those whose next token is wanted.
struct Rows {
    int64_t count;
    const int32_t* tokens;  // [count], rising: the token of each row; null: row i is token i
    const AttentionTask* tasks;
    int32_t num_tasks;
    const SplitRow* split_rows;  // [count]
    bool any_split;
};

// The memory of a step, which is kept and grown between steps. Rows of hidden and attended are padded to 64 with zeros.
struct Workspace {
    float* hidden;    // [num_tokens, hidden]: the residual
    float* query;     // [num_tokens, heads, head_stride]
    float* attended;  // [num_tokens, heads x head_dim]: the attention output
    float* cosine;    // [num_tokens, head_dim / 2]
    float* sine;
    int8_t* codes;  // quantised rows of the widest product, with their scales and sums
    float* scales;
    int32_t* sums;               // of the codes, by 32
    int8_t* intermediate_codes;  // the same for the input of down
    float* intermediate_scales;
    int32_t* intermediate_sums;
    float* greedy_value;  // [threads, num_greedy]
    int64_t* greedy_index;
    uint8_t* bad_logit;  // [threads, num_greedy]
    float* draw_logits;  // [num_draws, vocab padded to SUM_BLOCK]
    char* scratch;       // [threads, scratch_bytes]
    int64_t scratch_bytes;
    Rows all, last;
    const int32_t* row_of;  // [num_tokens]: the row of each token in `last`, or -1; null if all are wanted
    uint8_t* bad_kv;        // [num_tokens]: the pool cannot hold K or V of the last layer
    float* partials;  // [partials, heads / kv_heads, head_stride + 2]: values of all rows, then largest score and total
                      // of each
    int64_t* nanoseconds;  // [PARTS]: only grows; written by the calling thread
};
