// Vectors of float32 and of words of 32 bits, a lane for each, on any CPU: as wide as one that has AVX512, or half of it.
#ifndef CPU_LANES_H
#define CPU_LANES_H
#include <stdint.h>

#include "cpu_kernels.h"

#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16
#else
#define LANES 8
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

#if LANES == 16
#define EACH_LANE(F, h) F(0, h), F(1, h), F(2, h), F(3, h), F(4, h), F(5, h), F(6, h), F(7, h), \
                        F(8, h), F(9, h), F(10, h), F(11, h), F(12, h), F(13, h), F(14, h), F(15, h)
#else
#define EACH_LANE(F, h) F(0, h), F(1, h), F(2, h), F(3, h), F(4, h), F(5, h), F(6, h), F(7, h)
#endif
#ifdef __clang__
#define SHUFFLED(a, b, F, h) __builtin_shufflevector(a, b, EACH_LANE(F, h))
#else
#define SHUFFLED(a, b, F, h) __builtin_shuffle(a, b, (words){EACH_LANE(F, h)})
#endif
#define BIT(lane, h) (1u << (lane))
#define OTHER(lane, h) ((lane) ^ (h))
#define UPPER(lane, h) ((lane) & (h) ? LANES + (lane) - (h) : (lane))
#define LOWER(lane, h) ((lane) & (h) ? LANES + (lane) : (lane) + (h))

static inline lanes all(float value) { return (lanes){} + value; }

static inline lanes pick(words mask, lanes yes, lanes no) {
    return (lanes)(((words)yes & mask) | ((words)no & ~mask));
}

// NaN in b stays, as with a comparison of two numbers.
#ifdef __AVX512F__
static inline lanes larger(lanes a, lanes b) { return (lanes)_mm512_max_ps((__m512)a, (__m512)b); }
static inline lanes smaller(lanes a, lanes b) { return (lanes)_mm512_min_ps((__m512)a, (__m512)b); }
#else
static inline lanes larger(lanes a, lanes b) { return pick((words)(a > b), a, b); }
static inline lanes smaller(lanes a, lanes b) { return pick((words)(a < b), a, b); }
#endif

static inline int has_larger(lanes x, float than) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(than), _CMP_GT_OQ) != 0;
#else
    const words is_larger = (words)(x > than);
    for (int i = 0; i < LANES; i++)
        if (is_larger[i]) return 1;
    return 0;
#endif
}

static inline float largest(lanes x) {
#if LANES == 16
    x = larger(x, SHUFFLED(x, x, OTHER, 8));
#endif
    x = larger(x, SHUFFLED(x, x, OTHER, 4));
    x = larger(x, SHUFFLED(x, x, OTHER, 2));
    return larger(x, SHUFFLED(x, x, OTHER, 1))[0];
}

static inline float sum_of(lanes x) {
#if LANES == 16
    x = x + SHUFFLED(x, x, OTHER, 8);
#endif
    x = x + SHUFFLED(x, x, OTHER, 4);
    x = x + SHUFFLED(x, x, OTHER, 2);
    return (x + SHUFFLED(x, x, OTHER, 1))[0];
}

// e^x to a few units in the last place: 2^n times a polynomial on [-ln2/2, ln2/2] (Taylor's to the 7th power). NaN stays
// NaN.
static inline lanes exponential(lanes x) {
    const float rounds = 12582912.0f;  // 1.5 * 2^23: a number added to it is rounded to an integer, in its lowest bits
    x = smaller(all(88.0f), larger(all(-87.0f), x));
    const lanes shifted = x * 1.44269504f + rounds, n = shifted - rounds;
    lanes r = n * -0.693359375f + x;
    r = n * 2.12194440e-4f + r;
    lanes p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (lanes)(((words)shifted - to_bits(rounds) + 127) << 23);
}

// rows[i][j] becomes rows[j][i].
static inline void transpose(words *rows) {
#define ROUND(h)                                                                        \
    for (int i = 0; i < LANES; i++) {                                                   \
        if (i & h) continue;                                                            \
        const words a = rows[i], b = rows[i + h];                                       \
        rows[i] = SHUFFLED(a, b, UPPER, h), rows[i + h] = SHUFFLED(a, b, LOWER, h);     \
    }
#if LANES == 16
#pragma GCC unroll 16
    ROUND(8)
#endif
#pragma GCC unroll 16
    ROUND(4)
#pragma GCC unroll 16
    ROUND(2)
#pragma GCC unroll 16
    ROUND(1)
#undef ROUND
}
#endif
