// A mixture of experts: what cpu_experts.c computes, for the layers of cpu_layers.c and for cpu_experts.py.
#ifndef CPU_EXPERTS_H
#define CPU_EXPERTS_H
#include <stdint.h>

#include "cpu_kernels.h"
#include "cpu_products.h"

// A dense MLP. Without a weight of `up`, `gate` gives gate and up side by side.
typedef struct {
    linear gate, up, down;
    float limit, alpha;  // of gated_within; limit 0: silu(gate) * up
} mlp;

typedef struct {
    linear router;             // float32, an output for each expert
    const float *choice_bias;  // of each expert, added to its score for the choice; or NULL
    int64_t num_chosen;        // experts of a token
    int64_t sigmoid;           // scores are sigmoids of the logits, each by itself; 0: they are a softmax
    int64_t num_groups, num_chosen_groups, normalised;
    float scale;
    const mlp *experts;        // as many as the router has outputs, all of one size
    const mlp *shared;         // or NULL
} mixture;

// Bytes of memory that mix needs for so many rows.
int64_t mix_bytes(const mixture *m, int64_t rows);

// out (rows, hidden) = residual + the weighted sum of each row's experts and the shared one. `residual` may be NULL, or
// `out`. `room` has mix_bytes(m, rows) bytes, and its address is a multiple of 64.
void mix(const mixture *m, const act *x, const act *residual, act *out, void *room, int64_t rows, int threads);

// The experts of each row, ascending, and their weights: (rows, num_chosen) each.
void route(const mixture *m, const act *x, int64_t *chosen, float *weights, void *room, int64_t rows, int threads);
#endif
