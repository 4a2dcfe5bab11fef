// The products that others call: of rows with packed bfloat16 weights, or with weights of their own type in place.
// Those of float32 rows with packed weights are in cpu_products.c, those of bfloat16 rows in cpu_products_bf16.c; those
// with weights in place are in cpu_products_float32.c and cpu_products_in_place.c.
//
// Packed weights (see pack_bfloat16 in cpu_products.py): panels of 16 outputs; in a panel, for each pair of inputs the 16
// outputs' two weights side by side, the first in the lower half of 32 bits. Outputs are padded with zeros to whole
// panels, and inputs to a multiple of 32.
#ifndef CPU_PRODUCTS_H
#define CPU_PRODUCTS_H
#include <stdint.h>

#include "cpu_kernels.h"

#define PANEL 16

typedef uint16_t bf16;

typedef struct {
    const void *weight;
    const float *bias;  // (outputs), or NULL
    int64_t inputs, outputs;
    int64_t stride;     // 0: the weight is packed bfloat16. Else it is in place, of the rows' type: the inputs of an output
                        // side by side, and so many numbers from output to output
} linear;

static inline int64_t panel_size(const linear *l) { return (l->inputs + 31) / 32 * 32 * PANEL; }

int has_products(void);  // with packed weights, on the CPU that this is compiled for

// out (rows, outputs) = x (rows, inputs) @ weight.T + bias + residual (rows, outputs), which may be NULL, or `out`.
void product(const linear *l, const act *x, const act *residual, act *out, int64_t rows, int threads);
void float32_product(const linear *l, const float *x, const float *residual, float *out, int64_t rows, int threads);

// One of `parts` parts of a product, on this thread: some of its outputs. All parts together are the product.
void product_part(const linear *l, const act *x, const act *residual, act *out, int64_t rows, int64_t index,
                  int64_t parts);
void in_place_product(const linear *l, const act *x, const act *residual, act *out, int64_t rows, int threads);
void in_place_part(const linear *l, const act *x, const act *residual, act *out, int64_t rows, int64_t index,
                   int64_t parts);
void float32_part(const linear *l, const float *x, const float *residual, float *out, int64_t rows, int64_t index,
                  int64_t parts);
#endif
