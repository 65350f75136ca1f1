// The product of int8 rows with int8 weights: up to ROWS rows by two panels (32 columns) at a time in registers.
//
// Weights are stored as value + 128, so that they are unsigned, as the instructions want them; the excess is taken off
// by starting each integer sum at -128 x (sum of the row's codes in the group). Integer sums of a group of 64 are exact;
// groups are added in order in fp32, so a row's result does not depend on the rows beside it.
#pragma once

#include "types.h"
#include "vector.h"

namespace SLOTDECK_ISA {

constexpr int GROUP = 64;   // values that share a scale
constexpr int PANEL = 16;   // columns of a panel
constexpr int TILE = 32;    // columns computed at once
constexpr int VECTORS = PANEL / LANES;
// ROWS: rows in registers at once; AT_ONCE: vectors of columns beside them.

// Quantised rows: codes [rows, depth], scales and sums [rows, depth / 64]; sums are -128 x the sum of codes.
struct QuantisedRows {
    const int8_t* codes;
    const float* scales;
    const int32_t* sums;
    int64_t depth;
};

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr int ROWS = 6, AT_ONCE = 2;
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(row));
}
#elif defined(__AVXVNNI__)
constexpr int ROWS = 6, AT_ONCE = 2;
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32(row));
}
#elif defined(__AVX2__)
constexpr int ROWS = 6, AT_ONCE = 1;
// Unsigned by signed bytes would overflow the 16-bit pair sums; |w| x (row with w's sign) cannot: 2 x 127 x 127.
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    const __m256i w = _mm256_xor_si256((__m256i)weights, _mm256_set1_epi8((char)0x80));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(row), w));
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#else
constexpr int ROWS = 6, AT_ONCE = 1;
inline Ints dot(Ints sum, Ints weights, int32_t row) {
    for (int i = 0; i < 4; ++i)
        sum += (Ints)((Words)weights >> (8 * i) & 0xff) * (int32_t)(int8_t)((uint32_t)row >> (8 * i));
    return sum;
}
#endif

// What the integer sum of a group starts with: only where `dot` takes weights as stored.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr bool EXCESS = false;
#else
constexpr bool EXCESS = true;
#endif

// Part of the weights of the next tile, to be fetched from memory while this one is computed: `lines` cache lines of
// each group, from line `first` on.
struct Ahead {
    const uint8_t* codes;
    int64_t first, lines;
};

// out[R][32] = rows x two panels.
template <int R>
SEPARATE void product_rows(const QuantisedRows& rows, int64_t first, const Product& weights, int64_t panel,
                           const Ahead& ahead, float* out) {
    const int64_t depth = rows.depth, groups = depth / GROUP;
    const uint8_t* codes[2] = {weights.codes + panel * depth * PANEL, weights.codes + (panel + 1) * depth * PANEL};
    const uint16_t* scales[2] = {weights.scales + panel * groups * PANEL, weights.scales + (panel + 1) * groups * PANEL};
    const int8_t* row = rows.codes + first * depth;
    const float* row_scales = rows.scales + first * groups;
    const int32_t* row_sums = rows.sums + first * groups;
    Floats total[R][2][VECTORS];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < 2; ++p)
            for (int v = 0; v < VECTORS; ++v) total[r][p][v] = Floats{};
    for (int64_t group = 0; group < groups; ++group) {
        const uint8_t* next = ahead.codes + group * GROUP * TILE + ahead.first * 64;
        for (int64_t line = 0; line < ahead.lines; ++line) __builtin_prefetch(next + line * 64, 0, 2);
#pragma GCC unroll 8
        for (int part = 0; part < 2 * VECTORS; part += AT_ONCE) {
            Ints sums[R][AT_ONCE];
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < AT_ONCE; ++i)
                    sums[r][i] = EXCESS ? Ints{} + row_sums[r * groups + group] : Ints{};
            for (int k = 0; k < GROUP; k += 4) {
                Ints w[AT_ONCE];
                for (int i = 0; i < AT_ONCE; ++i) {
                    const int at = part + i;
                    w[i] = load<Ints>(codes[at / VECTORS] + (group * GROUP + k) * PANEL + at % VECTORS * LANES * 4);
                }
                for (int r = 0; r < R; ++r) {
                    int32_t four;
                    memcpy(&four, row + r * depth + group * GROUP + k, 4);
                    for (int i = 0; i < AT_ONCE; ++i) sums[r][i] = dot(sums[r][i], w[i], four);
                }
            }
            for (int i = 0; i < AT_ONCE; ++i) {
                const int at = part + i, p = at / VECTORS, v = at % VECTORS;
                const Floats scale = from_bf16(scales[p] + group * PANEL + v * LANES);
                for (int r = 0; r < R; ++r)
                    total[r][p][v] += __builtin_convertvector(sums[r][i], Floats) * (scale * row_scales[r * groups + group]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < 2; ++p)
            for (int v = 0; v < VECTORS; ++v) store(out + r * TILE + p * PANEL + v * LANES, total[r][p][v]);
}

// out[count][32] = rows first to first + count - 1 times tile `tile` of the weights. The next tile is fetched ahead: the
// processor's own prefetching ends at each page.
SEPARATE void product(const QuantisedRows& rows, int64_t first, int64_t count, const Product& weights, int64_t tile,
                      float* out) {
    const int64_t panel = tile * 2, lines = GROUP * TILE / 64, blocks = (count + ROWS - 1) / ROWS;
    const bool last = (tile + 1) * TILE >= weights.columns;
    Ahead ahead{weights.codes + (last ? tile : tile + 1) * rows.depth * TILE, 0, (lines + blocks - 1) / blocks};
    if (last) ahead.lines = 0;
    for (; count > 0; count -= ROWS, first += ROWS, out += ROWS * TILE) {
        switch (count) {
            case 1: product_rows<1>(rows, first, weights, panel, ahead, out); break;
            case 2: product_rows<2>(rows, first, weights, panel, ahead, out); break;
            case 3: product_rows<3>(rows, first, weights, panel, ahead, out); break;
            case 4: product_rows<4>(rows, first, weights, panel, ahead, out); break;
            case 5: product_rows<5>(rows, first, weights, panel, ahead, out); break;
            default: product_rows<ROWS>(rows, first, weights, panel, ahead, out); break;
        }
        ahead.first += ahead.lines;
        if (ahead.first + ahead.lines > lines) ahead.lines = lines - ahead.first;
    }
}

// Quantises `depth` values (a multiple of 64) to int8 by groups. A value that is not finite makes its group's scale
// NaN, so that it reaches every result it should have reached.
SEPARATE void quantise_row(const float* values, int64_t depth, int8_t* codes, float* scales, int32_t* sums) {
    for (int64_t group = 0; group < depth / GROUP; ++group, values += GROUP, codes += GROUP) {
        Floats largest = Floats{}, spoiled = Floats{};
        for (int i = 0; i < GROUP; i += LANES) {
            const Floats value = load<Floats>(values + i);
            largest = larger(absolute(value), largest);
            spoiled += value - value;
        }
        const float top = maximum(largest);
        // Below this the inverse would overflow; such values round to zero.
        const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;
        Ints total = Ints{};
        for (int i = 0; i < GROUP; i += LANES) {
            const Ints code = nearest(load<Floats>(values + i) * inverse);
            total += code;
            store(codes + i, __builtin_convertvector(code, Bytes));
        }
        int32_t lanes[LANES], added = 0;
        store(lanes, total);
        for (int i = 0; i < LANES; ++i) added += lanes[i];
        scales[group] = top / 127.0f + sum(spoiled);
        sums[group] = -128 * added;
    }
}

// RMSNorm of one row (padded to 64 with zeros) times `weight`, then quantised. `scratch` holds `padded` floats.
SEPARATE void norm_row(const float* values, const float* weight, int64_t size, int64_t padded, float eps, float* scratch,
                     int8_t* codes, float* scales, int32_t* sums) {
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
