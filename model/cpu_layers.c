// The C code of cpu_layers.py: the decoder layers of a forward of decodes in one call.
// The same kernels and products in the same order as LayerPass.run, so the same bits, but Python's lock is released and
// taken once a forward instead of ten times a layer.
#include "cpu_layers.h"

#include <stddef.h>
#include <string.h>

// Where the fields of these structs are, for cpu_structs.py: it compares them with Python's when it loads this library.
#define WHOLE(type) {#type, 0, sizeof(type)}
#define FIELD(type, field) {#type "." #field, offsetof(type, field), sizeof(((type *)0)->field)}

typedef struct {
    const char *name;
    int64_t offset, size;
} place_of;

const place_of places[] = {
    WHOLE(linear), FIELD(linear, weight), FIELD(linear, bias), FIELD(linear, inputs), FIELD(linear, outputs),

    WHOLE(scoring), FIELD(scoring, sinks), FIELD(scoring, window), FIELD(scoring, scale),

    WHOLE(requests), FIELD(requests, tables), FIELD(requests, lengths), FIELD(requests, positions),
    FIELD(requests, tree_starts), FIELD(requests, tree_bits), FIELD(requests, table_stride),

    WHOLE(layer), FIELD(layer, input_norm), FIELD(layer, qkv), FIELD(layer, qk_norm), FIELD(layer, by),
    FIELD(layer, output), FIELD(layer, mlp_norm), FIELD(layer, gate_up), FIELD(layer, down),

    WHOLE(decodes), FIELD(decodes, cos_TF), FIELD(decodes, sin_TF), FIELD(decodes, k_rows), FIELD(decodes, v_rows),
    FIELD(decodes, of), FIELD(decodes, num_heads), FIELD(decodes, num_kv_heads), FIELD(decodes, head_dim),
    FIELD(decodes, page_size), FIELD(decodes, eps),

    WHOLE(token_places), FIELD(token_places, positions), FIELD(token_places, slots), FIELD(token_places, inv_freq_F),
    FIELD(token_places, room),

    WHOLE(draft), FIELD(draft, embedding), FIELD(draft, num_tokens), FIELD(draft, token_norm), FIELD(draft, hidden_norm),
    FIELD(draft, hidden_first), FIELD(draft, project), FIELD(draft, layer), FIELD(draft, output_norm),
    FIELD(draft, head_norm), FIELD(draft, head), FIELD(draft, target_ids),
};
const int64_t num_places = sizeof places / sizeof *places;

// As CpuKernels.rotation and PagedKv.token_rows in Python.
void locate(const token_places *p, decodes *d, int64_t rows, int threads) {
    int64_t *k_rows = p->room, *v_rows = k_rows + rows;
    float *cos_TF = (float *)(v_rows + rows), *sin_TF = cos_TF + rows * d->head_dim / 2;
    rotation(p->positions, p->inv_freq_F, cos_TF, sin_TF, rows, threads);
    for (int64_t i = 0; i < rows; i++) {
        k_rows[i] = p->slots[i] + p->slots[i] / d->page_size * d->page_size;
        v_rows[i] = k_rows[i] + d->page_size;
    }
    d->cos_TF = cos_TF, d->sin_TF = sin_TF, d->k_rows = k_rows, d->v_rows = v_rows, d->of.positions = p->positions;
}

// `scratch` has room for the widest of a layer's values: see numbers_of_a_row in cpu_layers.py.
void run_layer(const layer *l, kv *pages, const decodes *d, const act *inputs, act *x, act *scratch, int64_t rows,
               int threads) {
    act *q = scratch, *rest = q + rows * d->num_heads * d->head_dim;
    place_layer(l, pages, d, inputs, x, q, rest, rows, threads);
    finish_layer(l, pages, d, q, x, rest, rows, threads);
}

void place_layer(const layer *l, kv *pages, const decodes *d, const act *inputs, const act *x, act *q, act *scratch,
                 int64_t rows, int threads) {
    const int64_t hidden = l->output.outputs, width = l->qkv.outputs;
    const int64_t q_size = d->num_heads * d->head_dim, kv_size = d->num_kv_heads * d->head_dim;
    act *normed = scratch, *qkv = normed + rows * hidden;

    if (!inputs && l->input_norm) rms_norm(x, l->input_norm, normed, rows, hidden, d->eps, threads);
    const act *read = inputs ? inputs : l->input_norm ? normed : x;
    product(&l->qkv, read, 0, qkv, rows, threads);
    place(qkv, width, qkv + q_size, width, qkv + q_size + kv_size, width, l->qk_norm, d->eps, d->cos_TF, d->sin_TF,
          d->k_rows, d->v_rows, q, pages, rows, d->num_heads, d->num_kv_heads, threads);
}

void finish_layer(const layer *l, const kv *pages, const decodes *d, const act *q, act *x, act *scratch, int64_t rows,
                  int threads) {
    const int64_t hidden = l->output.outputs, inner = l->down.inputs;
    act *attended = scratch, *normed = scratch, *gate_up = normed + rows * hidden;
    act *inner_values = gate_up + 2 * rows * inner;

    attend(q, pages, &d->of, &l->by, attended, rows, d->num_heads, d->num_kv_heads, d->page_size, threads);
    product(&l->output, attended, x, x, rows, threads);
    rms_norm(x, l->mlp_norm, normed, rows, hidden, d->eps, threads);
    product(&l->gate_up, normed, 0, gate_up, rows, threads);
    gated(gate_up, gate_up + inner, inner_values, rows, inner, 2 * inner, threads);
    product(&l->down, inner_values, x, x, rows, threads);
}

// x (rows, hidden) becomes the output of the last layer. `pages` has the pages of each layer. Of the layers `noted`, in
// ascending order, the inputs go to `inputs`, (rows, hidden) each.
void decode_layers(const layer *layers, kv *const *pages, int64_t num_layers, const token_places *at, decodes *d, act *x,
                   act *scratch, int64_t rows, const int64_t *noted, int64_t num_noted, act *const *inputs,
                   int threads) {
    locate(at, d, rows, threads);
    const int64_t bytes = rows * layers[0].output.outputs * sizeof(act);
    for (int64_t i = 0, next = 0; i < num_layers; i++) {
        if (next < num_noted && noted[next] == i) memcpy(inputs[next++], x, bytes);
        run_layer(&layers[i], pages[i], d, 0, x, scratch, rows, threads);
    }
}
