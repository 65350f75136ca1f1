// Vectors of the widest kind that the instruction set of this compilation has, written with the compiler's vector
// extension: the same source becomes AVX-512, AVX2, SSE2 or NEON. There are only plain functions here, because the
// linker could use the widest set's copy of a standard library template for the narrowest set.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace SLOTDECK_ISA {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

// For functions that are so long that inlining them would only cost compile time.
#define NOINLINE __attribute__((noinline, unused)) static

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

// A number as a type, so that a function can be selected by it.
template <int VALUE>
struct Constant {
    static constexpr int value = VALUE;
};

template <typename V, typename T>
inline V load(const T* from) {
    V value;
    memcpy(&value, from, sizeof value);
    return value;
}

template <typename V, typename T>
inline void store(T* to, V value) {
    memcpy(to, &value, sizeof value);
}

inline Floats splat(float value) { return value - Floats{}; }

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline Floats absolute(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

inline Floats from_bf16(const uint16_t* from) {
    return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

inline float from_bf16(uint16_t value) {
    const uint32_t word = (uint32_t)value << 16;
    float result;
    memcpy(&result, &word, 4);
    return result;
}

// Rounds to nearest, ties to even, as torch does. NaN stays NaN.
inline Halves to_bf16(Floats value) {
    const Words bits = (Words)value;
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Words nan = (bits >> 16) | 0x40;
    return __builtin_convertvector((Words)(value == value ? (Ints)rounded : (Ints)nan), Halves);
}

#if defined(__F16C__)
inline Floats from_fp16(const uint16_t* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#endif
}
inline Halves to_fp16(Floats value) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT);
#else
    return (Halves)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
#endif
}
#else
inline float from_fp16(uint16_t value) {
    // Multiplying adjusts the exponent, and is also correct for subnormals.
    const uint32_t sign = (uint32_t)(value & 0x8000) << 16, magnitude = (uint32_t)(value & 0x7fff) << 13;
    float result;
    memcpy(&result, &magnitude, 4);
    result *= 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &result, 4);
    if (magnitude >= 0x0f800000) bits |= 0x7f800000;  // infinity or NaN
    bits |= sign;
    memcpy(&result, &bits, 4);
    return result;
}
inline Floats from_fp16(const uint16_t* from) {
    Floats result;
    for (int i = 0; i < LANES; ++i) result[i] = from_fp16(from[i]);
    return result;
}
inline uint16_t to_fp16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;  // rounds to more than the largest fp16
    if (bits < 0x38800000) {                       // subnormal: the addition rounds to the spacing of the smallest fp16
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    bits += 0xc8000fff + (bits >> 13 & 1);
    return sign | (uint16_t)(bits >> 13);
}
inline Halves to_fp16(Floats value) {
    Halves result;
    for (int i = 0; i < LANES; ++i) result[i] = to_fp16(value[i]);
    return result;
}
#endif

// Of each run of 2 x S lanes, the first halves of a and b side by side. `second_halves` takes the others.
template <int S>
inline Floats first_halves(Floats a, Floats b) {
    Ints index;
    for (int i = 0; i < LANES; ++i) index[i] = (i & S) ? LANES + i - S : i;
    return __builtin_shuffle(a, b, index);
}
template <int S>
inline Floats second_halves(Floats a, Floats b) {
    Ints index;
    for (int i = 0; i < LANES; ++i) index[i] = (i & S) ? LANES + i : i + S;
    return __builtin_shuffle(a, b, index);
}

// Transposes LANES vectors of LANES values.
template <int S = LANES / 2>
inline void transpose(Floats* rows) {
    for (int i = 0; i < LANES; ++i) {
        if (i & S) continue;
        const Floats a = rows[i], b = rows[i + S];
        rows[i] = first_halves<S>(a, b);
        rows[i + S] = second_halves<S>(a, b);
    }
    if constexpr (S > 1) transpose<S / 2>(rows);
}

// Lane i of the result is the sum of rows[i]. It adds the same pairs as `sum`.
template <int S = LANES / 2>
inline Floats sum_rows(Floats* rows) {
    for (int i = 0; i < S; ++i)
        rows[i] = first_halves<S>(rows[i], rows[i + S]) + second_halves<S>(rows[i], rows[i + S]);
    if constexpr (S > 1) return sum_rows<S / 2>(rows);
    return rows[0];
}

inline float sum(Floats value) {
    float lanes[LANES];
    store(lanes, value);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

inline float maximum(Floats value) {
    float lanes[LANES];
    store(lanes, value);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}

// Rounds to the nearest integer, ties to even. For magnitudes below 2^22.
inline Ints nearest(Floats value) { return (Ints)((Words)(value + 12582912.0f) - 0x4b400000u); }

// e^x within 2 units in the last place; 0 below -87, e^88 above 88; NaN stays NaN. Polynomial of Cephes expf (Moshier).
inline Floats exponential(Floats x) {
    const Floats low = splat(-87.0f), high = splat(88.0f);
    const Ints zero = x < low;
    x = x < low ? low : x;
    x = x > high ? high : x;
    const Floats shifted = x * 1.44269504f + 12582912.0f;
    const Floats n = shifted - 12582912.0f;
    const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Words exponent = ((Words)shifted - 0x4b400000u + 127u) << 23;
    const Floats result = p * (Floats)exponent;
    return (Floats)((Ints)result & ~zero);
}

}  // namespace SLOTDECK_ISA
