// Draws the next token of a row. engine/model/sampling.py is the twin that defines the result.
//
// The weight of a token is exp((logit - largest logit) / temperature), so the largest weight is 1. top_k, top_p and
// min_p each keep the tokens whose weight is at least some floor, ties included. The bits of floats that are not
// negative are in the order of the floats, so a floor is found by bisecting a range of bits. That takes some 30 passes
// over a row in the L2 cache, a microsecond each; sorting the row would take milliseconds.
#pragma once

#include "types.h"
#include "vector.h"

namespace SLOTDECK_ISA {

constexpr int32_t ABOVE_ALL = 0x3f800001;  // bits just above those of the largest weight, 1

inline int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// Weights whose bits are at least `floor`; 0 in place of the others.
inline Floats kept(const float* weights, int32_t floor) {
    const Ints bits = load<Ints>(weights);
    return (Floats)(bits & (bits >= floor));
}

inline float block_mass(const float* weights, int32_t floor) {
    Floats sums = Floats{};
    for (int64_t i = 0; i < SUM_BLOCK; i += LANES) sums += kept(weights + i, floor);
    return sum(sums);
}

NOINLINE double total_mass(const float* weights, int64_t size, int32_t floor) {
    double total = 0;
    for (int64_t i = 0; i < size; i += SUM_BLOCK) total += block_mass(weights + i, floor);
    return total;
}

NOINLINE int64_t count_kept(const float* weights, int64_t size, int32_t floor) {
    Ints found = Ints{};
    for (int64_t i = 0; i < size; i += LANES) found -= load<Ints>(weights + i) >= floor;
    int32_t lanes[LANES];
    int64_t total = 0;
    store(lanes, found);
    for (int i = 0; i < LANES; ++i) total += lanes[i];
    return total;
}

// The highest floor for which `enough` holds. It holds for `lowest`, and stops holding at some point above.
template <typename Enough>
inline int32_t highest_floor(int32_t lowest, Enough enough) {
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

// The random number in [0, 1) for a position of a seed: the first number of Philox 4x64 with ten rounds (Salmon et al.,
// Parallel random numbers: as easy as 1, 2, 3; 2011), counted as numpy counts.
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

// Draws from `logits` [vocab padded to SUM_BLOCK], of which the first `vocab` are set. They are overwritten by their
// weights. Returns -1 if a logit is not finite.
NOINLINE int64_t draw(float* logits, int64_t vocab, const Draw& how) {
    const int64_t size = padded(vocab, SUM_BLOCK);
    for (int64_t i = vocab; i < size; ++i) logits[i] = -3e38f;  // its weight is 0
    Floats top = load<Floats>(logits), not_finite = Floats{};
    for (int64_t i = 0; i < size; i += LANES) {
        const Floats value = load<Floats>(logits + i);
        top = larger(value, top);
        not_finite += value - value;
    }
    if (sum(not_finite) != 0) return -1;
    const float best = maximum(top), scale = how.inverse_temperature;
    for (int64_t i = 0; i < size; i += LANES) store(logits + i, exponential((load<Floats>(logits + i) - best) * scale));
    const float* weights = logits;
    int32_t floor = 0;
    if (how.top_k > 0 && how.top_k < vocab)
        floor = highest_floor(floor, [&](int32_t at) { return count_kept(weights, size, at) >= how.top_k; });
    if (how.top_p < 1) {
        const double wanted = how.top_p * total_mass(weights, size, floor);
        floor = highest_floor(floor, [&](int32_t at) { return total_mass(weights, size, at) >= wanted; });
    }
    if (how.min_p > 0 && bits_of(how.min_p) > floor) floor = bits_of(how.min_p);
    const double wanted = uniform(how.seed, how.position) * total_mass(weights, size, floor);
    double before = 0, reached = 0;
    int64_t part = 0;  // the block that holds the wanted sum, or the last one with any weight if rounding leaves none
    for (int64_t i = 0; i < size; i += SUM_BLOCK) {
        const double here = block_mass(weights + i, floor);
        if (here == 0) continue;
        part = i;
        reached = before;
        before += here;
        if (before > wanted) break;
    }
    int64_t token = -1;
    for (int64_t i = part; i < part + SUM_BLOCK; ++i) {
        if (weights[i] == 0 || bits_of(weights[i]) < floor) continue;
        token = i;
        reached += weights[i];
        if (reached > wanted) break;
    }
    return token;
}

}  // namespace SLOTDECK_ISA
