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
    FIELD(linear, stride),

    WHOLE(scoring), FIELD(scoring, sinks), FIELD(scoring, window), FIELD(scoring, scale),

    WHOLE(requests), FIELD(requests, tables), FIELD(requests, lengths), FIELD(requests, positions),
    FIELD(requests, tree_starts), FIELD(requests, tree_bits), FIELD(requests, table_stride),

    WHOLE(layer), FIELD(layer, input_norm), FIELD(layer, q), FIELD(layer, k), FIELD(layer, v), FIELD(layer, qk_norm),
    FIELD(layer, by), FIELD(layer, output), FIELD(layer, feed_norm), FIELD(layer, feed), FIELD(layer, experts),

    WHOLE(mlp), FIELD(mlp, gate), FIELD(mlp, up), FIELD(mlp, down), FIELD(mlp, limit), FIELD(mlp, alpha),

    WHOLE(mixture), FIELD(mixture, router), FIELD(mixture, choice_bias), FIELD(mixture, num_chosen),
    FIELD(mixture, sigmoid), FIELD(mixture, num_groups), FIELD(mixture, num_chosen_groups), FIELD(mixture, normalised),
    FIELD(mixture, scale), FIELD(mixture, experts), FIELD(mixture, shared),

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

void run_layer(const layer *l, kv *pages, const decodes *d, const act *inputs, act *x, act *scratch, int64_t rows,
               int threads) {
    act *q = scratch, *rest = q + rows * d->num_heads * d->head_dim;
    place_layer(l, pages, d, inputs, x, q, rest, rows, threads);
    finish_layer(l, pages, d, q, x, rest, rows, threads);
}

void place_layer(const layer *l, kv *pages, const decodes *d, const act *inputs, const act *x, act *q, act *scratch,
                 int64_t rows, int threads) {
    const int64_t hidden = l->output.outputs, apart = l->k.weight != 0;
    const int64_t q_size = d->num_heads * d->head_dim, kv_size = d->num_kv_heads * d->head_dim;
    const int64_t width = q_size + 2 * kv_size;
    act *normed = scratch, *qkv = normed + rows * hidden;
    act *k = qkv + q_size * (apart ? rows : 1), *v = k + kv_size * (apart ? rows : 1);

    if (!inputs && l->input_norm) rms_norm(x, l->input_norm, normed, rows, hidden, d->eps, threads);
    const act *read = inputs ? inputs : l->input_norm ? normed : x;
    product(&l->q, read, 0, qkv, rows, threads);
    if (apart) {
        product(&l->k, read, 0, k, rows, threads);
        product(&l->v, read, 0, v, rows, threads);
    }
    place(qkv, apart ? q_size : width, k, apart ? kv_size : width, v, apart ? kv_size : width, l->qk_norm, d->eps,
          d->cos_TF, d->sin_TF, d->k_rows, d->v_rows, q, pages, rows, d->num_heads, d->num_kv_heads, threads);
}

void finish_layer(const layer *l, const kv *pages, const decodes *d, const act *q, act *x, act *scratch, int64_t rows,
                  int threads) {
    const int64_t hidden = l->output.outputs, inner = l->feed.down.inputs, apart = l->feed.up.weight != 0;
    act *attended = scratch, *normed = scratch, *gate_up = normed + rows * hidden;
    act *up = gate_up + inner * (apart ? rows : 1), *inner_values = gate_up + 2 * rows * inner;

    attend(q, pages, &d->of, &l->by, attended, rows, d->num_heads, d->num_kv_heads, d->page_size, threads);
    product(&l->output, attended, x, x, rows, threads);
    rms_norm(x, l->feed_norm, normed, rows, hidden, d->eps, threads);
    if (l->experts) {
        void *room = (void *)(((uintptr_t)gate_up + 63) / 64 * 64);
        mix(l->experts, normed, x, x, room, rows, threads);
        return;
    }
    product(&l->feed.gate, normed, 0, gate_up, rows, threads);
    if (apart) product(&l->feed.up, normed, 0, up, rows, threads);
    gated(gate_up, up, inner_values, rows, inner, (apart ? 1 : 2) * inner, threads);
    product(&l->feed.down, inner_values, x, x, rows, threads);
}

int64_t most_mix_bytes(const layer *layers, int64_t num_layers, int64_t rows) {
    int64_t most = 0;
    for (int64_t i = 0; i < num_layers; i++) {
        const int64_t bytes = layers[i].experts ? mix_bytes(layers[i].experts, rows) + 64 : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
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
