// Products of float32 rows with packed bfloat16 weights: see cpu_products.c.
#ifndef CPU_PRODUCTS_H
#define CPU_PRODUCTS_H
#include <stdint.h>

typedef uint16_t bf16;

typedef struct {
    const bf16 *weight;  // packed
    const float *bias;   // (outputs), or NULL
    int64_t inputs, outputs;
} linear;

int has_products(void);  // on the CPU that this is compiled for

// out (rows, outputs) = x (rows, inputs) @ weight.T + bias + residual (rows, outputs), which may be NULL, or `out`.
void product(const linear *l, const float *x, const float *residual, float *out, int64_t rows, int threads);
#endif
