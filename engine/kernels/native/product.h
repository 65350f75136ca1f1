// The product of int8 rows with weights of 8 or 4 bits: up to ROWS rows by two panels (32 columns) at a time.
//
// 8-bit weights are stored as value + 128, because the instructions take unsigned weights. The excess is removed by
// starting each integer sum at -128 x (sum of the row's codes in the group). 4-bit weights are unsigned; their minimum
// is multiplied by the sum of the row's codes. The integer sum of a group (64 values, or 32 with 4 bits) is exact.
// Groups are added in order in fp32, so the result for a row does not depend on the rows beside it.
#pragma once

#include "types.h"
#include "vector.h"

namespace SLOTDECK_ISA {

constexpr int64_t BLOCK_BYTES = 320;  // one block of a panel with 4 bits
constexpr int PANEL = 16;             // columns of a panel
constexpr int TILE = 32;              // columns computed at once
constexpr int VECTORS = PANEL / LANES;
constexpr int64_t PREFETCH_BYTES = 4096;  // with few rows: distance from the weights in use to those prefetched
// FEW: up to this many rows, reading the weights takes longer than multiplying them. Then one panel is computed after
// the other, so that memory is read sequentially. ROWS: rows in registers at once. COLUMN_VECTORS: vectors of columns
// in registers at once.

// Quantised rows: codes [rows, depth], scales [rows, depth / 64], sums of codes [rows, depth / 32].
struct QuantisedRows {
    const int8_t* codes;
    const float* scales;
    const int32_t* sums;
    int64_t depth;
};

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr int ROWS = 6, COLUMN_VECTORS = 2, FEW = 6;
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(row));
}
#elif defined(__AVXVNNI__)
constexpr int ROWS = 6, COLUMN_VECTORS = 2, FEW = 6;
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32(row));
}
#elif defined(__AVX2__)
constexpr int ROWS = 6, COLUMN_VECTORS = 1, FEW = 2;
// Unsigned by signed bytes would overflow the 16-bit pair sums; |w| x (row with w's sign) cannot: 2 x 127 x 127.
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    const __m256i w = _mm256_xor_si256((__m256i)weights, _mm256_set1_epi8((char)0x80));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(row), w));
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#else
constexpr int ROWS = 6, COLUMN_VECTORS = 1, FEW = 2;
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    Words total = (Words)sum;
    for (int i = 0; i < 4; ++i)
        total += ((Words)weights >> (8 * i) & 0xff) * (uint32_t)(int32_t)(int8_t)((uint32_t)row >> (8 * i));
    return (Ints)total;
}
#endif

// EXCESS: whether `dot` takes weights as they are stored, so that each sum must start at minus the excess.
// `dot_small` is for codes 0 to 15; `widened` turns its sums over a block into 32-bit sums.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr bool EXCESS = false;
// Sums of pairs stay in 16 bits: a block adds 8 of them, at most 8 x 2 x 15 x 127 = 30,480.
inline Ints dot_small(Ints sum, Ints weights, int32_t row) {
    return (Ints)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)weights, _mm256_set1_epi32(row)));
}
inline Ints widened(Ints sum) { return (Ints)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)); }
#else
constexpr bool EXCESS = true;
inline Ints dot_small(Ints sum, Ints weights, int32_t row) { return dot(sum, weights, row); }
inline Ints widened(Ints sum) { return sum; }
#endif

// Which weights are prefetched while a tile is computed; the processor's own prefetching ends at every page. `bytes` is
// the size of one group of all panels that are computed side by side.
template <int PANELS>
struct Prefetch;

// Many rows: of each group of the next tile, `lines` cache lines from line `first` on.
template <>
struct Prefetch<2> {
    const uint8_t* next;
    int64_t first, lines;

    void fetch(int64_t group, const uint8_t*, int64_t bytes) const {
        const uint8_t* from = next + group * bytes + first * 64;
        for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(from + line * 64, 0, 2);
    }
};

// Few rows: the weights PREFETCH_BYTES after the group that is computed.
template <>
struct Prefetch<1> {
    void fetch(int64_t, const uint8_t* codes, int64_t bytes) const {
        for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(codes + PREFETCH_BYTES + byte, 0, 0);
    }
};

// out[R][PANELS x 16] = R rows x PANELS panels of 8 bits. A line of `out` has TILE numbers. With few rows, an integer
// sum is computed in PARTS parts, so that its instructions wait less for each other.
template <int R, int PANELS>
NOINLINE void product_rows(const QuantisedRows& rows, int64_t first, const Product& weights, int64_t panel,
                           const Prefetch<PANELS>& prefetch, float* out) {
    constexpr int ONCE = COLUMN_VECTORS < PANELS * VECTORS ? COLUMN_VECTORS : PANELS * VECTORS;
    constexpr int PARTS = PANELS > 1 || R * ONCE > 4 ? 1 : R * ONCE > 2 ? 2 : 4 / (R * ONCE);
    const int64_t depth = rows.depth, groups = depth / GROUP;
    const uint8_t* codes[PANELS];
    const uint16_t* scales[PANELS];
    for (int p = 0; p < PANELS; ++p) {
        codes[p] = weights.codes + (panel + p) * depth * PANEL;
        scales[p] = weights.scales + (panel + p) * groups * PANEL;
    }
    const int8_t* row = rows.codes + first * depth;
    const float* row_scales = rows.scales + first * groups;
    const int32_t* row_sums = rows.sums + first * groups * 2;
    Floats total[R][PANELS * VECTORS];
    for (int r = 0; r < R; ++r)
        for (int at = 0; at < PANELS * VECTORS; ++at) total[r][at] = Floats{};
    for (int64_t group = 0; group < groups; ++group) {
        prefetch.fetch(group, codes[0] + group * GROUP * PANEL, PANELS * GROUP * PANEL);
        int32_t start[R];
        for (int r = 0; r < R; ++r) {
            const int32_t* halves = row_sums + (r * groups + group) * 2;
            start[r] = EXCESS ? (int32_t)(0u - 128u * ((uint32_t)halves[0] + (uint32_t)halves[1])) : 0;
        }
#pragma GCC unroll 8
        for (int part = 0; part < PANELS * VECTORS; part += ONCE) {
            Ints sums[R][ONCE][PARTS];
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < ONCE; ++i)
                    for (int j = 0; j < PARTS; ++j) sums[r][i][j] = Ints{} + (j == 0 ? start[r] : 0);
            for (int k = 0; k < GROUP; k += 4 * PARTS)
#pragma GCC unroll 4
                for (int j = 0; j < PARTS; ++j) {
                    const int64_t value = group * GROUP + k + 4 * j;
                    Ints w[ONCE];
                    for (int i = 0; i < ONCE; ++i) {
                        const int at = part + i;
                        w[i] = load<Ints>(codes[at / VECTORS] + value * PANEL + at % VECTORS * LANES * 4);
                    }
                    for (int r = 0; r < R; ++r) {
                        int32_t four;
                        memcpy(&four, row + r * depth + value, 4);
                        for (int i = 0; i < ONCE; ++i) sums[r][i][j] = dot(sums[r][i][j], w[i], four);
                    }
                }
            for (int i = 0; i < ONCE; ++i) {
                const int at = part + i, p = at / VECTORS, v = at % VECTORS;
                const Floats scale = from_bf16(scales[p] + group * PANEL + v * LANES);
                for (int r = 0; r < R; ++r) {
                    Words sum = (Words)sums[r][i][0];
                    for (int j = 1; j < PARTS; ++j) sum += (Words)sums[r][i][j];
                    total[r][at] +=
                        __builtin_convertvector((Ints)sum, Floats) * (scale * row_scales[r * groups + group]);
                }
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int at = 0; at < PANELS * VECTORS; ++at) store(out + r * TILE + at * LANES, total[r][at]);
}

// The same with weights of 4 bits.
template <int R, int PANELS>
NOINLINE void product_rows_4(const QuantisedRows& rows, int64_t first, const Product& weights, int64_t panel,
                             const Prefetch<PANELS>& prefetch, float* out) {
    constexpr int ONCE = COLUMN_VECTORS < PANELS * VECTORS ? COLUMN_VECTORS : PANELS * VECTORS;
    const int64_t depth = rows.depth, groups = depth / BLOCK;
    const uint8_t* blocks[PANELS];
    for (int p = 0; p < PANELS; ++p) blocks[p] = weights.codes + (panel + p) * groups * BLOCK_BYTES;
    const int8_t* row = rows.codes + first * depth;
    const float* row_scales = rows.scales + first * (groups / 2);
    const int32_t* row_sums = rows.sums + first * groups;
    Floats total[R][PANELS * VECTORS];
    for (int r = 0; r < R; ++r)
        for (int at = 0; at < PANELS * VECTORS; ++at) total[r][at] = Floats{};
    for (int64_t group = 0; group < groups; ++group) {
        prefetch.fetch(group, blocks[0] + group * BLOCK_BYTES, PANELS * BLOCK_BYTES);
        float scales[R], added[R];
        for (int r = 0; r < R; ++r) {
            scales[r] = row_scales[r * (groups / 2) + group / 2];
            added[r] = (float)row_sums[r * groups + group];
        }
#pragma GCC unroll 8
        for (int part = 0; part < PANELS * VECTORS; part += ONCE) {
            Ints sums[R][ONCE];
            // Rows are unrolled so that the sums stay in registers. The depth is not, since then the values of the rows
            // would not.
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < ONCE; ++i) sums[r][i] = Ints{};
#pragma GCC unroll 1
            for (int k = 0; k < BLOCK; k += 8) {
                Ints low[ONCE], high[ONCE];
                for (int i = 0; i < ONCE; ++i) {
                    const int at = part + i;
                    const uint8_t* block = blocks[at / VECTORS] + group * BLOCK_BYTES;
                    const Words both = load<Words>(block + k * 8 + at % VECTORS * LANES * 4);
                    low[i] = (Ints)(both & 0x0f0f0f0f);
                    high[i] = (Ints)(both >> 4 & 0x0f0f0f0f);
                }
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    int32_t four, next;
                    memcpy(&four, row + r * depth + group * BLOCK + k, 4);
                    memcpy(&next, row + r * depth + group * BLOCK + k + 4, 4);
                    for (int i = 0; i < ONCE; ++i)
                        sums[r][i] = dot_small(dot_small(sums[r][i], low[i], four), high[i], next);
                }
            }
            for (int i = 0; i < ONCE; ++i) {
                const int at = part + i, p = at / VECTORS, v = at % VECTORS;
                const uint16_t* steps = (const uint16_t*)(blocks[p] + group * BLOCK_BYTES + BLOCK * PANEL / 2);
                const Floats step = from_fp16(steps + v * LANES), minimum = from_fp16(steps + PANEL + v * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    total[r][at] +=
                        (__builtin_convertvector(widened(sums[r][i]), Floats) * step + minimum * added[r]) * scales[r];
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int at = 0; at < PANELS * VECTORS; ++at) store(out + r * TILE + at * LANES, total[r][at]);
}

template <int R, int PANELS>
inline void product_of(const QuantisedRows& rows, int64_t first, const Product& weights, int64_t panel,
                       const Prefetch<PANELS>& prefetch, float* out) {
    if (weights.bits == 4)
        product_rows_4<R, PANELS>(rows, first, weights, panel, prefetch, out);
    else
        product_rows<R, PANELS>(rows, first, weights, panel, prefetch, out);
}

// Calls work(R), a constant, for `count` rows.
template <typename Work>
inline void with_rows(int64_t count, Work work) {
    switch (count) {
        case 1: work(Constant<1>{}); break;
        case 2: work(Constant<2>{}); break;
        case 3: work(Constant<3>{}); break;
        case 4: work(Constant<4>{}); break;
        case 5: work(Constant<5>{}); break;
        default: work(Constant<ROWS>{}); break;
    }
}

// out[count][32] = rows first to first + count - 1 times tile `tile` of the weights.
NOINLINE void product(const QuantisedRows& rows, int64_t first, int64_t count, const Product& weights, int64_t tile,
                      float* out) {
    const int64_t panel = tile * 2;
    if (count <= FEW) {
        for (int p = 0; p < 2; ++p)
            with_rows(count, [&](auto r) {
                product_of<decltype(r)::value, 1>(rows, first, weights, panel + p, {}, out + p * PANEL);
            });
        return;
    }
    const bool last = (tile + 1) * TILE >= weights.columns;
    const int64_t bytes = weights.bits == 4 ? 2 * BLOCK_BYTES : GROUP * TILE, lines = bytes / 64;
    const int64_t pieces = (count + ROWS - 1) / ROWS;
    const int64_t tile_bytes = rows.depth / (weights.bits == 4 ? BLOCK : GROUP) * bytes;
    Prefetch<2> prefetch{weights.codes + (tile + 1) * tile_bytes, 0, last ? 0 : (lines + pieces - 1) / pieces};
    for (; count > 0; count -= ROWS, first += ROWS, out += ROWS * TILE) {
        with_rows(count,
                  [&](auto r) { product_of<decltype(r)::value, 2>(rows, first, weights, panel, prefetch, out); });
        prefetch.first += prefetch.lines;
        if (prefetch.first + prefetch.lines > lines) prefetch.lines = lines - prefetch.first;
    }
}

// Quantises `depth` values (a multiple of 64) to int8 by groups. A value that is not finite makes the scale of its
// group NaN, so that it reaches every result that depends on it.
NOINLINE void quantise_row(const float* values, int64_t depth, int8_t* codes, float* scales, int32_t* sums) {
    for (int64_t group = 0; group < depth / GROUP; ++group, values += GROUP, codes += GROUP) {
        Floats largest = Floats{}, not_finite = Floats{};
        for (int i = 0; i < GROUP; i += LANES) {
            const Floats value = load<Floats>(values + i);
            largest = larger(absolute(value), largest);
            not_finite += value - value;
        }
        const float top = maximum(largest);
        // Below this the inverse would overflow. Such values round to zero.
        const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;
        for (int half = 0; half < 2; ++half) {
            Words total = Words{};
            for (int i = half * BLOCK; i < (half + 1) * BLOCK; i += LANES) {
                const Ints code = nearest(load<Floats>(values + i) * inverse);
                total += (Words)code;
                store(codes + i, __builtin_convertvector(code, Bytes));
            }
            uint32_t lanes[LANES], added = 0;  // unsigned, since the codes of values that are not finite may overflow
            store(lanes, total);
            for (int i = 0; i < LANES; ++i) added += lanes[i];
            sums[group * 2 + half] = (int32_t)added;
        }
        scales[group] = top / 127.0f + sum(not_finite);
    }
}

// RMSNorm of one row (padded to 64 with zeros) times `weight`, then quantised. `scratch` holds `padded` floats.
NOINLINE void norm_row(const float* values, const float* weight, int64_t size, int64_t padded, float eps,
                       float* scratch, int8_t* codes, float* scales, int32_t* sums) {
    Floats squares = Floats{};
    for (int64_t i = 0; i < padded; i += LANES) {
        const Floats value = load<Floats>(values + i);
        squares += value * value;
    }
    const float factor = 1.0f / __builtin_sqrtf(sum(squares) / (float)size + eps);
    for (int64_t i = 0; i < padded; i += LANES)
        store(scratch + i, load<Floats>(values + i) * factor * load<Floats>(weight + i));
    quantise_row(scratch, padded, codes, scales, sums);
}

}  // namespace SLOTDECK_ISA
