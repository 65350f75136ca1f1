// The next token of a row drawn by chance; engine/model/sampling.py is the twin that defines it.
//
// A token weighs exp((logit - best) / temperature), so the best weighs 1. top_k, top_p and min_p each keep what weighs at
// least some floor, ties included. Bits of floats that are not negative are in the order of the floats, so a floor is
// found by halving a range of bits: some 30 passes over a row in the second cache, a microsecond each, where to sort it
// would take milliseconds.
#pragma once

#include "types.h"
#include "vector.h"

namespace SLOTDECK_ISA {

constexpr int32_t ABOVE_ALL = 0x3f800001;  // bits just above those of the best weight, 1: no floor is so high

inline int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// Weights whose bits are at least `floor`; 0 instead of others.
inline Floats kept(const float* weights, int32_t floor) {
    const Ints bits = load<Ints>(weights);
    return (Floats)(bits & (bits >= floor));
}

inline float part_mass(const float* weights, int32_t floor) {
    Floats sums = Floats{};
    for (int64_t i = 0; i < SUMMED; i += LANES) sums += kept(weights + i, floor);
    return sum(sums);
}

SEPARATE double mass(const float* weights, int64_t size, int32_t floor) {
    double total = 0;
    for (int64_t i = 0; i < size; i += SUMMED) total += part_mass(weights + i, floor);
    return total;
}

SEPARATE int64_t number(const float* weights, int64_t size, int32_t floor) {
    Ints found = Ints{};
    for (int64_t i = 0; i < size; i += LANES) found -= load<Ints>(weights + i) >= floor;
    int32_t lanes[LANES];
    int64_t total = 0;
    store(lanes, found);
    for (int i = 0; i < LANES; ++i) total += lanes[i];
    return total;
}

// The highest floor that is enough, which `lowest` is.
template <typename Enough>
inline int32_t highest(int32_t lowest, Enough enough) {
    int32_t high = ABOVE_ALL;
    while (high - lowest > 1) {
        const int32_t middle = lowest + (high - lowest) / 2;
        if (enough(middle))
            lowest = middle;
        else
            high = middle;
    }
    return lowest;
}

// The draw in [0, 1) for a position of a seed: Philox 4x64 of ten rounds (Salmon et al., Parallel random numbers: as easy
// as 1, 2, 3; 2011), its first number, as numpy counts.
inline double uniform(uint64_t seed, uint64_t position) {
    uint64_t counter[4] = {position + 1, position + 1 == 0, 0, 0}, key[2] = {seed, 0};
    for (int round = 0; round < 10; ++round) {
        const unsigned __int128 first = (unsigned __int128)0xD2E7470EE14C6C93u * counter[0];
        const unsigned __int128 second = (unsigned __int128)0xCA5A826395121157u * counter[2];
        counter[0] = (uint64_t)(second >> 64) ^ counter[1] ^ key[0];
        counter[2] = (uint64_t)(first >> 64) ^ counter[3] ^ key[1];
        counter[1] = (uint64_t)second;
        counter[3] = (uint64_t)first;
        key[0] += 0x9E3779B97F4A7C15u;
        key[1] += 0xBB67AE8584CAA73Bu;
    }
    return (double)(counter[0] >> 11) * (1.0 / 9007199254740992.0);
}

// Draws from `logits` [vocab padded to SUMMED], of which `vocab` are there; they become weights. -1 where a logit is not finite.
SEPARATE int64_t draw(float* logits, int64_t vocab, const Draw& how) {
    const int64_t size = padded(vocab, SUMMED);
    for (int64_t i = vocab; i < size; ++i) logits[i] = -3e38f;  // weighs 0
    Floats top = load<Floats>(logits), unlike = Floats{};
    for (int64_t i = 0; i < size; i += LANES) {
        const Floats value = load<Floats>(logits + i);
        top = larger(value, top);
        unlike += value - value;
    }
    if (sum(unlike) != 0) return -1;
    const float best = maximum(top), scale = how.scale;
    for (int64_t i = 0; i < size; i += LANES) store(logits + i, exponential((load<Floats>(logits + i) - best) * scale));
    const float* weights = logits;
    int32_t floor = 0;
    if (how.top_k > 0 && how.top_k < vocab)
        floor = highest(floor, [&](int32_t at) { return number(weights, size, at) >= how.top_k; });
    if (how.top_p < 1) {
        const double wanted = how.top_p * mass(weights, size, floor);
        floor = highest(floor, [&](int32_t at) { return mass(weights, size, at) >= wanted; });
    }
    if (how.min_p > 0 && bits_of(how.min_p) > floor) floor = bits_of(how.min_p);
    const double wanted = uniform(how.seed, how.position) * mass(weights, size, floor);
    double before = 0, reached = 0;
    int64_t part = 0;  // the one that holds what is wanted, or the last that holds anything if rounding leaves none
    for (int64_t i = 0; i < size; i += SUMMED) {
        const double here = part_mass(weights + i, floor);
        if (here == 0) continue;
        part = i;
        reached = before;
        before += here;
        if (before > wanted) break;
    }
    int64_t token = -1;
    for (int64_t i = part; i < part + SUMMED; ++i) {
        if (weights[i] == 0 || bits_of(weights[i]) < floor) continue;
        token = i;
        reached += weights[i];
        if (reached > wanted) break;
    }
    return token;
}

}  // namespace SLOTDECK_ISA
