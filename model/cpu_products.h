// The products that others call: of rows with packed bfloat16 weights.
// Those of float32 rows are in cpu_products.c, those of bfloat16 rows in cpu_products_bf16.c.
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
    const bf16 *weight;  // packed
    const float *bias;   // (outputs), or NULL
    int64_t inputs, outputs;
} linear;

static inline int64_t panel_size(const linear *l) { return (l->inputs + 31) / 32 * 32 * PANEL; }

int has_products(void);  // on the CPU that this is compiled for

// out (rows, outputs) = x (rows, inputs) @ weight.T + bias + residual (rows, outputs), which may be NULL, or `out`.
void product(const linear *l, const act *x, const act *residual, act *out, int64_t rows, int threads);
#endif
