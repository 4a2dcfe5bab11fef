// One decoder layer of a forward of decodes: what cpu_layers.c and cpu_draft.c share.
#ifndef CPU_LAYERS_H
#define CPU_LAYERS_H
#include <stdint.h>

#include "cpu_experts.h"
#include "cpu_kernels.h"
#include "cpu_products.h"

typedef struct {
    const act *input_norm;    // or NULL: attention reads its input as it is
    linear q, k, v;           // without a weight of k, q gives all three side by side
    const act *qk_norm;       // or NULL
    scoring by;
    linear output;
    const act *feed_norm;
    mlp feed;
    const mixture *experts;   // NULL: the feed is the dense MLP
} layer;

typedef struct {
    const float *cos_TF, *sin_TF;
    const int64_t *k_rows, *v_rows;                    // where each token's K and V go
    requests of;
    int64_t num_heads, num_kv_heads, head_dim, page_size;
    float eps;
} decodes;

// Where the tokens of a forward lie, and room for what `locate` makes of it: two numbers of 64 bits and `head_dim` of 32
// bits for each.
typedef struct {
    const int64_t *positions, *slots;
    const float *inv_freq_F;
    void *room;
} token_places;

// A draft of one layer. It joins the embedding of a token and a hidden state, each with a norm or without.
typedef struct {
    const act *embedding;                  // (num_tokens of the target, hidden)
    int64_t num_tokens;
    const act *token_norm, *hidden_norm;   // or NULL
    int64_t hidden_first;                  // the hidden state lies before the embedding, not behind it
    linear project;                        // from both to the layer's input. Without a weight: attention reads both, and
                                           // the hidden state is the residual
    layer layer;
    const act *output_norm, *head_norm;    // of what the layer gives, and of what the head reads; or NULL
    linear head;
    const int64_t *target_ids;             // the target's id of each of the draft's tokens; NULL: the same
} draft;

// Sets the first four pointers of d, and the positions.
void locate(const token_places *p, decodes *d, int64_t rows, int threads);

// x (rows, hidden) becomes the output of the layer. Attention reads `inputs`, or the input norm of x if it is NULL.
// `scratch` has room for the widest of a layer's values, see CpuLayers in cpu_layers.py.
void run_layer(const layer *l, kv *pages, const decodes *d, const act *inputs, act *x, act *scratch, int64_t rows,
               int threads);

// Its two parts: writes K and V and gives q (rows, num_heads, head_dim); then x becomes the output. The second may have
// fewer rows than the first.
void place_layer(const layer *l, kv *pages, const decodes *d, const act *inputs, const act *x, act *q, act *scratch,
                 int64_t rows, int threads);
void finish_layer(const layer *l, const kv *pages, const decodes *d, const act *q, act *x, act *scratch, int64_t rows,
                  int threads);

// Bytes of memory that the experts of these layers need at most, with a start at any address.
int64_t most_mix_bytes(const layer *layers, int64_t num_layers, int64_t rows);
#endif
