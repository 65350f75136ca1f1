// The functions that Python calls. Chooses the instruction set at run time; owns the memory of a step.
#include <cstdlib>
#include <cstring>
#include <new>

#include "team.h"
#include "types.h"

#define DECLARE(isa)                                                                                              \
    extern "C" void forward_##isa(const Model*, const Step*, const Workspace*, Team*, int, int);                  \
    extern "C" int64_t scratch_##isa(const Model*);                                                               \
    extern "C" void product_##isa(const Product*, const float*, int64_t, int8_t*, float*, int32_t*, float*, Team*, \
                                  int);

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
};

// Best first.
const Variant VARIANTS[] = {
#if defined(__x86_64__)
    {"avx512-vnni",
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
     },
     forward_avx512_vnni, scratch_avx512_vnni, product_avx512_vnni},
    {"avx-vnni",
     [] {
         return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                __builtin_cpu_supports("avxvnni");
     },
     forward_avx_vnni, scratch_avx_vnni, product_avx_vnni},
    {"avx2",
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); },
     forward_avx2, scratch_avx2, product_avx2},
#endif
    {"portable", [] { return true; }, forward_portable, scratch_portable, product_portable},
};

constexpr int64_t GROUP = 64, BLOCK = 32, CHUNK = 16;
constexpr int PHASES_PER_LAYER = 8, PHASES_BESIDE = 4;  // at most, in forward.cpp

int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

// A block of memory that only grows.
struct Buffer {
    void* data = nullptr;
    size_t size = 0;

    template <typename T>
    T* take(int64_t count) {
        const size_t wanted = (size_t)padded(count * (int64_t)sizeof(T) + 64, 64);
        if (wanted > size) {
            free(data);
            size = 0;
            data = aligned_alloc(64, wanted);
            if (data == nullptr) throw std::bad_alloc();
            size = wanted;
            memset(data, 0, wanted);
        }
        return static_cast<T*>(data);
    }
};

}  // namespace

struct Kernels {
    Team* team = nullptr;
    const Variant* variant = nullptr;
    Buffer hidden, query, mixed, cosine, sine, codes, scales, sums, inner_codes, inner_scales, inner_sums, best_value,
        best_index, bad_logit, scratch, tasks;
    int64_t nanoseconds[PARTS] = {};
};

namespace {

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

// Long chunks first, so that the last tasks to be taken are small.
int32_t lay_out_tasks(const Model& model, const Step& step, AttentionTask* tasks) {
    int32_t number = 0;
    for (int longer = 1; longer >= 0; --longer) {
        int32_t row = 0;
        for (int32_t span = 0; span < step.spans; ++span) {
            const int32_t count = step.span_count[span];
            if ((count > 1) == (longer == 1))
                for (int32_t at = (count - 1) / (int32_t)CHUNK * (int32_t)CHUNK; at >= 0; at -= (int32_t)CHUNK)
                    for (int32_t head = 0; head < model.kv_heads; ++head)
                        tasks[number++] = {span, row + at, step.span_start[span] + at,
                                           count - at < CHUNK ? count - at : (int32_t)CHUNK, head};
            row += count;
        }
    }
    return number;
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

int slotdeck_abi() { return SLOTDECK_ABI; }

// Name of the n-th instruction set this CPU has, best first; null after the last.
const char* slotdeck_instruction_set(int number) {
    for (const Variant& variant : VARIANTS)
        if (variant.supported() && number-- == 0) return variant.name;
    return nullptr;
}

// Starts `threads` threads (this one counts). Null when the CPU lacks the instruction set or memory is short.
Kernels* slotdeck_create(const char* instruction_set, int threads) {
    for (const Variant& variant : VARIANTS) {
        if (strcmp(variant.name, instruction_set) != 0 || !variant.supported()) continue;
        Kernels* kernels = new (std::nothrow) Kernels;
        if (kernels == nullptr) return nullptr;
        kernels->variant = &variant;
        kernels->team = team_create(threads < 1 ? 1 : threads);
        if (kernels->team != nullptr) return kernels;
        delete kernels;
        return nullptr;
    }
    return nullptr;
}

void slotdeck_destroy(Kernels* kernels) {
    team_destroy(kernels->team);
    Buffer* buffers[] = {&kernels->hidden, &kernels->query, &kernels->mixed, &kernels->cosine, &kernels->sine,
                         &kernels->codes, &kernels->scales, &kernels->sums, &kernels->inner_codes,
                         &kernels->inner_scales, &kernels->inner_sums, &kernels->best_value, &kernels->best_index,
                         &kernels->bad_logit, &kernels->scratch, &kernels->tasks};
    for (Buffer* buffer : buffers) free(buffer->data);
    delete kernels;
}

int slotdeck_threads(const Kernels* kernels) { return team_size(kernels->team); }

// Nanoseconds that each part of all steps so far has taken; a step may run meanwhile. `nanoseconds`: [PARTS].
void slotdeck_times(const Kernels* kernels, int64_t* nanoseconds) {
    for (int part = 0; part < PARTS; ++part)
        nanoseconds[part] = __atomic_load_n(kernels->nanoseconds + part, __ATOMIC_RELAXED);
}

// Computes one step. 0, or 1 when memory is short (nothing was computed).
int slotdeck_step(Kernels* kernels, const Model* model, const Step* step) try {
    const int64_t tokens = step->tokens, half = model->head_dim / 2, threads = team_size(kernels->team);
    const int64_t hidden = padded(model->hidden, GROUP), inner = padded(model->inner, GROUP);
    const int64_t attended = padded((int64_t)model->heads * model->head_dim, GROUP);
    const int64_t widest = hidden > attended ? hidden : attended, wanted = step->greedy + step->logit_rows;
    const int64_t rows = tokens > wanted ? tokens : wanted;
    int64_t tasks = 0;
    for (int32_t span = 0; span < step->spans; ++span)
        tasks += (step->span_count[span] + CHUNK - 1) / CHUNK * model->kv_heads;
    Workspace space;
    space.hidden = kernels->hidden.take<float>(tokens * hidden);
    space.query = kernels->query.take<float>(tokens * model->heads * model->head_stride);
    space.mixed = kernels->mixed.take<float>(tokens * attended);
    space.cosine = kernels->cosine.take<float>(tokens * half);
    space.sine = kernels->sine.take<float>(tokens * half);
    space.codes = kernels->codes.take<int8_t>(rows * widest);
    space.scales = kernels->scales.take<float>(rows * widest / GROUP);
    space.sums = kernels->sums.take<int32_t>(rows * widest / BLOCK);
    space.inner_codes = kernels->inner_codes.take<int8_t>(tokens * inner);
    space.inner_scales = kernels->inner_scales.take<float>(tokens * inner / GROUP);
    space.inner_sums = kernels->inner_sums.take<int32_t>(tokens * inner / BLOCK);
    space.best_value = kernels->best_value.take<float>(threads * step->greedy);
    space.best_index = kernels->best_index.take<int64_t>(threads * step->greedy);
    space.bad_logit = kernels->bad_logit.take<uint8_t>(threads * step->greedy);
    space.scratch_bytes = kernels->variant->scratch(model) * 4;
    space.scratch = kernels->scratch.take<char>(threads * space.scratch_bytes);
    AttentionTask* list = kernels->tasks.take<AttentionTask>(tasks);
    space.num_tasks = lay_out_tasks(*model, *step, list);
    space.tasks = list;
    space.nanoseconds = kernels->nanoseconds;
    // A thread that comes to the head when all is done writes nothing, so its entries must be there before.
    for (int64_t i = 0; i < threads * step->greedy; ++i) {
        space.best_value[i] = -__builtin_inff();
        space.best_index[i] = model->vocab;
        space.bad_logit[i] = 0;
    }
    Job job{kernels->variant, model, step, &space};
    const bool ran = team_run(
        kernels->team,
        [](void* argument, Team* team, int thread, int count) {
            const Job& job = *static_cast<Job*>(argument);
            job.variant->forward(job.model, job.step, job.space, team, thread, count);
        },
        &job, PHASES_PER_LAYER * model->layers + PHASES_BESIDE);
    return ran ? 0 : 1;
} catch (const std::bad_alloc&) {
    return 1;
}

// out[count, columns] = values[count, depth] x weights. 0, or 1 when memory is short.
int slotdeck_product(Kernels* kernels, const Product* weights, const float* values, int64_t count, float* out) try {
    const int64_t groups = weights->depth / GROUP;
    ProductJob job{kernels->variant,
                   weights,
                   values,
                   count,
                   kernels->codes.take<int8_t>(count * weights->depth),
                   kernels->scales.take<float>(count * groups),
                   kernels->sums.take<int32_t>(count * groups * 2),
                   out};
    const bool ran = team_run(
        kernels->team,
        [](void* argument, Team* team, int thread, int) {
            const ProductJob& j = *static_cast<ProductJob*>(argument);
            j.variant->product(j.weights, j.values, j.count, j.codes, j.scales, j.sums, j.out, team, thread);
        },
        &job, 2);
    return ran ? 0 : 1;
} catch (const std::bad_alloc&) {
    return 1;
}

// Packs weights [rows, depth] fp32 as columns `first` (a multiple of 16) on of a product of 8 bits; see Product. `depth` is not
// padded, the product's is. What is not finite makes its group's scale infinite, so that it is found at load.
void slotdeck_pack(const float* weights, int64_t rows, int64_t depth, int64_t first, int64_t padded_depth,
                   uint8_t* codes, uint16_t* scales) {
    const int64_t groups = padded_depth / GROUP;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t panel = (first + row) / 16, column = (first + row) % 16;
        uint8_t* to = codes + panel * padded_depth * 16;
        for (int64_t group = 0; group < groups; ++group) {
            const float* from = weights + row * depth + group * GROUP;
            const int64_t count = depth - group * GROUP < GROUP ? depth - group * GROUP : GROUP;
            float top = 0, spoiled = 0;
            for (int64_t i = 0; i < count; ++i) {
                const float size = __builtin_fabsf(from[i]);
                top = size > top ? size : top;
                spoiled += from[i] - from[i];
            }
            // Rounded up to bf16, so that no code exceeds 127; codes are then found against the rounded scale.
            float scale = top / 127.0f;
            uint32_t bits;
            memcpy(&bits, &scale, 4);
            bits = top > 1e-30f ? (bits + 0xffff) & 0xffff0000 : 0;
            if (spoiled != 0) bits = 0x7f800000;
            memcpy(&scale, &bits, 4);
            scales[(panel * groups + group) * 16 + column] = (uint16_t)(bits >> 16);
            const float inverse = bits != 0 && spoiled == 0 ? 1.0f / scale : 0.0f;
            for (int64_t i = 0; i < GROUP; ++i) {
                const float scaled = i < count ? from[i] * inverse : 0.0f;
                const int code = spoiled != 0 ? 1 : (int)__builtin_lrintf(scaled);
                const int64_t k = group * GROUP + i;
                to[k / 4 * 64 + column * 4 + k % 4] = (uint8_t)(code + 128);
            }
        }
    }
}
#pragma GCC visibility pop
}
