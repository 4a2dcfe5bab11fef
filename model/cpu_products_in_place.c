// Products of bfloat16 rows with bfloat16 weights, which are read where they lie, for CPUs with AVX512's dot products.
// Sums are float32; bias and residual are added to them, and the result is rounded once.
#include "cpu_lanes.h"
#include "cpu_products.h"

#if defined(ACT_BF16) && defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(NO_PRODUCTS)

typedef __m512i numbers;

static inline lanes multiply_add(numbers x, numbers w, lanes sum) {
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
}

#define NUMBER bf16
#define COUNT (2 * LANES)
#define TO_FLOAT(x) widen(x)
#define FROM_FLOAT(x) narrow(x)
#define PRODUCT in_place_product
#define PART in_place_part
#include "cpu_in_place.h"

#endif
