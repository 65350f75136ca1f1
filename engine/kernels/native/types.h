// What crosses the border between Python and the kernels. engine/kernels/library.py mirrors these structures.
#pragma once

#include <cstdint>

#define SLOTDECK_ABI 5

// Sizes that whoever lays out memory and tasks and whoever computes must agree on.
constexpr int GROUP = 64;    // values that share a scale: of rows, and of weights of 8 bits
constexpr int BLOCK = 32;    // values of 4-bit weights that share step and minimum
constexpr int CHUNK = 16;    // query tokens of a task of attention
constexpr int STRIP = 256;   // keys that are mixed by themselves, so that several threads may share a long sequence
constexpr int SUMMED = 256;  // tokens whose weights are summed before the sums are: rows to draw from are padded to it

// Static, as all functions in headers must be here: one copy for all instruction sets could be the widest's.
static inline int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

// Weights [columns, depth] in panels of 16 columns. Both counts are padded: columns to 32, depth to 64; padded weights
// are zero.
//
// 8 bits: within a panel, for each 4 values of depth, 16 columns x 4 bytes, stored as value + 128. Scales (bf16) apart,
// by panel, group of 64, column.
//
// 4 bits: a weight is minimum + step x code, code 0 to 15. Within a panel, for each 32 values of depth, 256 bytes of
// codes, 16 steps and 16 minima (fp16). Of the codes, for each 8 values of depth, 16 columns x 4 bytes: the first four
// values in the low halves, the other four in the high ones. No scales apart.
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
    Product qkv;      // by head, each padded to head_stride columns: queries, keys, values
    Product output;
    Product gate_up;  // panels alternate: 16 columns of gate, the same 16 of up; padded to 64 of each
    Product down;
};

struct Model {
    int32_t hidden, heads, kv_heads, head_dim, inner, vocab, layers, block_size;
    float eps;
    int32_t head_stride;        // head_dim padded to 32
    int32_t window;             // newest keys that a token sees, its own included; 0: all
    const uint16_t* embedding;  // bf16 [vocab, hidden]
    const float* norm;          // padded to 64, as all norms
    const float* inverse_frequencies;  // [head_dim / 2]
    Product head;
    const Layer* layer;
};

// The first key that a token at `position` sees.
static inline int64_t oldest_key(const Model& model, int64_t position) {
    return model.window > 0 && position + 1 > model.window ? position + 1 - model.window : 0;
}

// Values of a row of attention's result: all heads, padded.
static inline int64_t attended(const Model& model) { return padded((int64_t)model.heads * model.head_dim, GROUP); }

enum KvType : int32_t { KV_FP32 = 0, KV_BF16 = 1, KV_FP16 = 2, KV_INT8 = 3 };

// How one token is drawn. `scale` is 1 / temperature; top_k 0, top_p 1 and min_p 0 are off.
struct Draw {
    int64_t token;  // of the batch: the next token after this one is wanted
    uint64_t seed, position;
    int64_t top_k;
    double top_p;
    float scale, min_p;
};

// One flat batch. Spans cover the tokens in order; each reads the keys of its own block table.
struct Step {
    int32_t tokens, spans, greedy, logit_rows, draws;
    const int64_t* token_ids;
    const int64_t* positions;
    const int64_t* slots;        // block x block_size + offset
    const int32_t* span_start;   // position of the first token
    const int32_t* span_count;
    const int64_t* span_blocks;  // where the span's table begins in blocks
    const int32_t* blocks;
    int32_t kv_type, num_blocks;
    void* const* keys;           // by layer: [kv_heads, num_blocks, block_size, head_dim]
    void* const* values;
    float* const* key_scales;    // by layer: [kv_heads, num_blocks, block_size]; int8 only
    float* const* value_scales;
    const int64_t* greedy_tokens;  // [greedy]: tokens of the batch whose best next token is wanted
    int64_t* best;                 // [greedy], or -1 where a logit is not finite
    const int64_t* logit_tokens;   // [logit_rows]: tokens whose logits are wanted
    float* logits;                 // [logit_rows, vocab]
    uint8_t* finite;               // [tokens]
    const Draw* draw;              // [draws]
    int64_t* drawn;                // [draws], or -1 where a logit is not finite
};

// Where the time of steps goes, in the order of engine/kernels/library.py's PARTS.
enum Part : int32_t {
    PART_EMBED, PART_NORM, PART_QKV, PART_ATTENTION, PART_OUTPUT, PART_GATE_UP, PART_DOWN, PART_HEAD, PART_DRAW, PARTS };

// One unit of attention: some query tokens of a span, against `strips` strips of keys of one kv head, from `strip` on.
// Where that is not all they see, what comes of each strip goes to places from `place` on; else `place` is -1.
struct AttentionTask {
    int32_t span, first_row, start, count, kv_head, strip, strips, place;
};

// Of a token whose strips were computed apart: their number, and the place of the first; those of the next kv head
// follow. Else the number is 0.
struct Apart {
    int32_t place, strips;
};

// The rows of a part of the step: all of its tokens, or in the last layer those whose next token is wanted.
struct Rows {
    int64_t count;
    const int32_t* tokens;  // [count], rising: the token of each row; null: row i is token i
    const AttentionTask* tasks;
    int32_t num_tasks;
    const Apart* apart;     // [count]
    bool any_apart;
};

// Memory of a step, kept and grown between steps. Rows of hidden and mixed are padded to 64 with zeros.
struct Workspace {
    float* hidden;      // [tokens, hidden]: the residual
    float* query;       // [tokens, heads, head_stride]
    float* mixed;       // [tokens, heads x head_dim]
    float* cosine;      // [tokens, head_dim / 2]
    float* sine;
    int8_t* codes;      // quantised rows of the widest product, and their scales and sums
    float* scales;
    int32_t* sums;      // of the codes, by 32
    int8_t* inner_codes;  // the same for the input of down
    float* inner_scales;
    int32_t* inner_sums;
    float* best_value;    // [threads, greedy]
    int64_t* best_index;
    uint8_t* bad_logit;   // [threads, greedy]
    float* draw_logits;   // [draws, vocab padded to SUMMED]
    char* scratch;        // [threads, scratch_bytes]
    int64_t scratch_bytes;
    Rows all, last;
    const int32_t* row_of;  // [tokens]: the row of each token in `last`, or -1; null where all are wanted
    uint8_t* spoiled;       // [tokens]: K or V of the last layer is not what the pool can hold
    float* places;        // [places, heads / kv_heads, head_stride + 2]: mixes of all rows, then largest and total of each
    int64_t* nanoseconds;  // [PARTS]: grows; written by the thread that called
};
