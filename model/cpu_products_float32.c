// Products of float32 rows with float32 weights, which are read where they lie.
// A CPU without instructions that multiply and add in one rounds each product before it is added, in every sum.
#include "cpu_lanes.h"
#include "cpu_products.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

typedef lanes numbers;

static inline lanes multiply_add(numbers x, numbers w, lanes sum) {
#if defined(__AVX512F__)
    return (lanes)_mm512_fmadd_ps((__m512)x, (__m512)w, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
    return (lanes)_mm256_fmadd_ps((__m256)x, (__m256)w, (__m256)sum);
#else
    return x * w + sum;
#endif
}

#define NUMBER float
#define COUNT LANES
#define TO_FLOAT(x) (x)
#define FROM_FLOAT(x) (x)
#define PRODUCT float32_product
#define PART float32_part
#include "cpu_in_place.h"
