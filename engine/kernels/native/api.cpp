// The functions that Python calls. They choose the instruction set at run time.
#include <algorithm>
#include <cstring>
#include <new>

#include "attention_tasks.h"
#include "memory.h"
#include "thread_pool.h"
#include "types.h"

#define DECLARE(isa)                                                                                        \
    extern "C" void forward_##isa(const Model*, const Step*, const Workspace*, ThreadPool*, int, int);      \
    extern "C" int64_t scratch_##isa(const Model*);                                                         \
    extern "C" void product_##isa(const Product*, const float*, int64_t, int8_t*, float*, int32_t*, float*, \
                                  ThreadPool*, int);                                                        \
    extern "C" void draw_##isa(float*, int64_t, const Draw*, int64_t, int64_t*, ThreadPool*, int);

DECLARE(portable)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx_vnni)
DECLARE(avx512_vnni)
#endif

namespace {

struct Variant {
    const char* name;
    bool (*supported)();
    decltype(&forward_portable) forward;
    decltype(&scratch_portable) scratch;
    decltype(&product_portable) product;
    decltype(&draw_portable) draw;
};

// Fastest first.
const Variant VARIANTS[] = {
#if defined(__x86_64__)
    {"avx512-vnni",
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
     },
     forward_avx512_vnni, scratch_avx512_vnni, product_avx512_vnni, draw_avx512_vnni},
    {"avx-vnni",
     [] {
         return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                __builtin_cpu_supports("avxvnni");
     },
     forward_avx_vnni, scratch_avx_vnni, product_avx_vnni, draw_avx_vnni},
    {"avx2",
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); },
     forward_avx2, scratch_avx2, product_avx2, draw_avx2},
#endif
    {"portable", [] { return true; }, forward_portable, scratch_portable, product_portable, draw_portable},
};

constexpr int PHASES_PER_LAYER = 8, PHASES_BESIDE = 7;  // upper bounds for the phases in forward.cpp

struct Job {
    const Variant* variant;
    const Model* model;
    const Step* step;
    const Workspace* space;
};

struct ProductJob {
    const Variant* variant;
    const Product* weights;
    const float* values;
    int64_t count;
    int8_t* codes;
    float* scales;
    int32_t* sums;
    float* out;
};

struct DrawJob {
    const Variant* variant;
    float* logits;
    int64_t vocab;
    const Draw* how;
    int64_t count;
    int64_t* drawn;
};

}  // namespace

struct Kernels {
    ThreadPool* thread_pool = nullptr;
    const Variant* variant = nullptr;
    Memory memory;
    Queries queries;
    int64_t nanoseconds[PARTS] = {};
};

extern "C" {
#pragma GCC visibility push(default)

int slotdeck_abi() { return SLOTDECK_ABI; }

// Name of the n-th instruction set that this CPU has, fastest first; null after the last.
const char* slotdeck_instruction_set(int number) {
    for (const Variant& variant : VARIANTS)
        if (variant.supported() && number-- == 0) return variant.name;
    return nullptr;
}

// Starts `threads` threads, the calling one included. Null if the CPU lacks the instruction set or memory runs out.
Kernels* slotdeck_create(const char* instruction_set, int threads) {
    for (const Variant& variant : VARIANTS) {
        if (strcmp(variant.name, instruction_set) != 0 || !variant.supported()) continue;
        Kernels* kernels = new (std::nothrow) Kernels;
        if (kernels == nullptr) return nullptr;
        kernels->variant = &variant;
        kernels->thread_pool = thread_pool_create(threads < 1 ? 1 : threads);
        if (kernels->thread_pool != nullptr) return kernels;
        delete kernels;
        return nullptr;
    }
    return nullptr;
}

void slotdeck_destroy(Kernels* kernels) {
    thread_pool_destroy(kernels->thread_pool);
    delete kernels;
}

int slotdeck_threads(const Kernels* kernels) { return thread_pool_size(kernels->thread_pool); }

// Nanoseconds that each part has taken in all steps so far. A step may run meanwhile. nanoseconds: [PARTS].
void slotdeck_times(const Kernels* kernels, int64_t* nanoseconds) {
    for (int part = 0; part < PARTS; ++part)
        nanoseconds[part] = __atomic_load_n(kernels->nanoseconds + part, __ATOMIC_RELAXED);
}

// Computes one step. Returns 0, or 1 if memory runs out; then nothing was computed.
int slotdeck_step(Kernels* kernels, const Model* model, const Step* step) try {
    const int64_t tokens = step->num_tokens, half = model->head_dim / 2,
                  threads = thread_pool_size(kernels->thread_pool);
    const int64_t hidden = padded(model->hidden, GROUP), intermediate = padded(model->intermediate, GROUP);
    const int64_t widest = std::max(hidden, attended(*model));
    const int64_t wanted = step->num_greedy + step->num_logit_rows + step->num_draws;
    const int64_t rows = tokens > wanted ? tokens : wanted;
    Queries& queries = kernels->queries;
    queries.gather(*step);
    const bool only_some = (int64_t)queries.last.size() < tokens;  // tokens whose next one is wanted
    if (!only_some) queries.last.clear();
    const AttentionPlan attention(*model, queries.all, threads), last_attention(*model, queries.last, threads);
    Workspace space;
    space.scratch_bytes = kernels->variant->scratch(model) * 4;
    AttentionTask *all_tasks, *last_tasks;
    SplitRow *all_split_rows, *last_split_rows;
    kernels->memory.allocate([&](auto part) {
        part(space.hidden, tokens * hidden);
        part(space.query, tokens * model->heads * model->head_stride);
        part(space.attended, tokens * attended(*model));
        part(space.cosine, tokens * half);
        part(space.sine, tokens * half);
        part(space.codes, rows * widest);
        part(space.scales, rows * widest / GROUP);
        part(space.sums, rows * widest / BLOCK);
        part(space.intermediate_codes, tokens * intermediate);
        part(space.intermediate_scales, tokens * intermediate / GROUP);
        part(space.intermediate_sums, tokens * intermediate / BLOCK);
        part(space.greedy_value, threads * step->num_greedy);
        part(space.greedy_index, threads * step->num_greedy);
        part(space.bad_logit, threads * step->num_greedy);
        part(space.draw_logits, step->num_draws * padded(model->vocab, SUM_BLOCK));
        part(space.scratch, threads * space.scratch_bytes);
        part(space.bad_kv, tokens);
        part(all_tasks, attention.tasks);
        part(all_split_rows, tokens);
        part(last_tasks, last_attention.tasks);
        part(last_split_rows, tokens);
        part(space.partials, std::max(attention.partials, last_attention.partials) * (model->heads / model->kv_heads) *
                                 (model->head_stride + 2));
    });
    space.all = {tokens,         nullptr,
                 all_tasks,      attention.make_tasks(*model, queries.all, all_tasks, all_split_rows),
                 all_split_rows, attention.partials > 0};
    space.last = {(int64_t)queries.last.size(),
                  queries.tokens.data(),
                  last_tasks,
                  last_attention.make_tasks(*model, queries.last, last_tasks, last_split_rows),
                  last_split_rows,
                  last_attention.partials > 0};
    space.row_of = only_some ? queries.row_of.data() : nullptr;
    space.nanoseconds = kernels->nanoseconds;
    // A thread that reaches the head after all tasks are done writes nothing, so its entries must be valid before.
    for (int64_t i = 0; i < threads * step->num_greedy; ++i) {
        space.greedy_value[i] = -__builtin_inff();
        space.greedy_index[i] = model->vocab;
        space.bad_logit[i] = 0;
    }
    Job job{kernels->variant, model, step, &space};
    const bool ran = thread_pool_run(
        kernels->thread_pool,
        [](void* argument, ThreadPool* thread_pool, int thread, int count) {
            const Job& job = *static_cast<Job*>(argument);
            job.variant->forward(job.model, job.step, job.space, thread_pool, thread, count);
        },
        &job, PHASES_PER_LAYER * model->layers + PHASES_BESIDE);
    return ran ? 0 : 1;
} catch (const std::bad_alloc&) {
    return 1;
}

// out[count, columns] = values[count, depth] x weights. Returns 0, or 1 if memory runs out.
int slotdeck_product(Kernels* kernels, const Product* weights, const float* values, int64_t count, float* out) try {
    const int64_t groups = weights->depth / GROUP;
    ProductJob job{kernels->variant, weights, values, count, nullptr, nullptr, nullptr, out};
    kernels->memory.allocate([&](auto part) {
        part(job.codes, count * weights->depth);
        part(job.scales, count * groups);
        part(job.sums, count * groups * 2);
    });
    const bool ran = thread_pool_run(
        kernels->thread_pool,
        [](void* argument, ThreadPool* thread_pool, int thread, int) {
            const ProductJob& j = *static_cast<ProductJob*>(argument);
            j.variant->product(j.weights, j.values, j.count, j.codes, j.scales, j.sums, j.out, thread_pool, thread);
        },
        &job, 2);
    return ran ? 0 : 1;
} catch (const std::bad_alloc&) {
    return 1;
}

// Draws drawn[count] from logits [count, vocab]; see Draw. Returns 0, or 1 if memory runs out.
int slotdeck_draw(Kernels* kernels, const float* logits, int64_t vocab, const Draw* how, int64_t count,
                  int64_t* drawn) try {
    DrawJob job{kernels->variant, nullptr, vocab, how, count, drawn};
    const int64_t stride = padded(vocab, SUM_BLOCK);
    kernels->memory.allocate([&](auto part) { part(job.logits, count * stride); });
    for (int64_t row = 0; row < count; ++row)
        memcpy(job.logits + row * stride, logits + row * vocab, (size_t)vocab * 4);
    const bool ran = thread_pool_run(
        kernels->thread_pool,
        [](void* argument, ThreadPool* thread_pool, int thread, int) {
            const DrawJob& j = *static_cast<DrawJob*>(argument);
            j.variant->draw(j.logits, j.vocab, j.how, j.count, j.drawn, thread_pool, thread);
        },
        &job, 1);
    return ran ? 0 : 1;
} catch (const std::bad_alloc&) {
    return 1;
}

// Packs weights [rows, depth] fp32 as columns of an 8-bit product, from column `first` (a multiple of 16) on; see
// Product. `depth` is not padded, but that of the product is. A weight that is not finite makes the scale of its group
// infinite, so that loading the model finds it.
void slotdeck_pack(const float* weights, int64_t rows, int64_t depth, int64_t first, int64_t padded_depth,
                   uint8_t* codes, uint16_t* scales) {
    const int64_t groups = padded_depth / GROUP;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t panel = (first + row) / 16, column = (first + row) % 16;
        uint8_t* to = codes + panel * padded_depth * 16;
        for (int64_t group = 0; group < groups; ++group) {
            const float* from = weights + row * depth + group * GROUP;
            const int64_t count = depth - group * GROUP < GROUP ? depth - group * GROUP : GROUP;
            float top = 0, not_finite = 0;
            for (int64_t i = 0; i < count; ++i) {
                const float size = __builtin_fabsf(from[i]);
                top = size > top ? size : top;
                not_finite += from[i] - from[i];
            }
            // Rounded up to bf16, so that no code exceeds 127; codes are then found against the rounded scale.
            float scale = top / 127.0f;
            uint32_t bits;
            memcpy(&bits, &scale, 4);
            bits = top > 1e-30f ? (bits + 0xffff) & 0xffff0000 : 0;
            if (not_finite != 0) bits = 0x7f800000;
            memcpy(&scale, &bits, 4);
            scales[(panel * groups + group) * 16 + column] = (uint16_t)(bits >> 16);
            const float inverse = bits != 0 && not_finite == 0 ? 1.0f / scale : 0.0f;
            for (int64_t i = 0; i < GROUP; ++i) {
                const float scaled = i < count ? from[i] * inverse : 0.0f;
                const int code = not_finite != 0 ? 1 : (int)__builtin_lrintf(scaled);
                const int64_t k = group * GROUP + i;
                to[k / 4 * 64 + column * 4 + k % 4] = (uint8_t)(code + 128);
            }
        }
    }
}
#pragma GCC visibility pop
}
