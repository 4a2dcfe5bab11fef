// A draft of one layer in one call: a forward of it, alone or with what it proposes, or a chain of proposals.
// Each proposal is the likeliest token behind the one before. The same kernels and products in the same order as
// LoadedDraft calls, so the same bits.
#include <string.h>

#include "cpu_layers.h"

// The embedding of each token. Returns 0 if the target does not know one of them.
static int embed(const draft *t, const int64_t *ids, act *to, int64_t rows) {
    const int64_t size = t->layer.output.outputs;
    for (int64_t row = 0; row < rows; row++) {
        if (ids[row] < 0 || ids[row] >= t->num_tokens) return 0;
        memcpy(to + row * size, t->embedding + ids[row] * size, size * sizeof(act));
    }
    return 1;
}

// Rows of `from`, normed if there is a norm, into every second half-row of `to`.
static void half(const act *from, const act *norm, act *normed, act *to, int64_t rows, int64_t size, float eps,
                 int threads) {
    if (norm) rms_norm(from, norm, normed, rows, size, eps, threads);
    const act *halves = norm ? normed : from;
    for (int64_t row = 0; row < rows; row++) memcpy(to + 2 * row * size, halves + row * size, size * sizeof(act));
}

// The layer's input `out` (rows, hidden), its residual. Returns what attention reads, in `both`, or NULL: the same input.
static const act *join(const draft *t, const act *embedded, const act *hidden, float eps, act *out, act *both,
                       act *scratch, int64_t rows, int threads) {
    const int64_t size = t->layer.output.outputs;
    half(embedded, t->token_norm, scratch, both + (t->hidden_first ? size : 0), rows, size, eps, threads);
    half(hidden, t->hidden_norm, scratch, both + (t->hidden_first ? 0 : size), rows, size, eps, threads);
    if (t->project.weight) {
        product(&t->project, both, 0, out, rows, threads);
        return 0;
    }
    memcpy(out, hidden, rows * size * sizeof(act));
    return both;
}

// out (rows, hidden): what the layer gives for these embedded tokens and hidden states. Writes K and V of the rows.
// `scratch` has room for both side by side and what run_layer needs: see numbers_of_a_row in cpu_draft.py.
static void embedded_rows(const draft *t, kv *pages, const decodes *d, const act *embedded, const act *hidden, act *out,
                          act *scratch, int64_t rows, int threads) {
    const int64_t size = t->layer.output.outputs;
    act *both = scratch, *rest = both + 2 * rows * size;
    const act *inputs = join(t, embedded, hidden, d->eps, out, both, rest, rows, threads);
    run_layer(&t->layer, pages, d, inputs, out, rest, rows, threads);
    if (t->output_norm) rms_norm(out, t->output_norm, out, rows, size, d->eps, threads);
}

// The target's id of the likeliest of the draft's tokens: of equals the lowest id, and NaN before all numbers, as
// torch.argmax has it.
int64_t likeliest(const draft *t, const act *logits) {
    float best = READ(logits[0]);
    int64_t token = t->target_ids ? t->target_ids[0] : 0;
    for (int64_t i = 1; i < t->head.outputs; i++) {
        const float logit = READ(logits[i]);
        if (logit < best || (best != best && logit == logit)) continue;
        const int64_t id = t->target_ids ? t->target_ids[i] : i;
        const int equal = logit == best || (logit != logit && best != best);
        if (!equal || id < token) best = logit, token = id;
    }
    return token;
}

// As embedded_rows, of these tokens. `scratch` has room for their embeddings, too. Like those below it returns 0, and has
// written nothing, if the target does not know one of the tokens.
int draft_rows(const draft *t, kv *pages, const token_places *at, decodes *d, const int64_t *ids, const act *hidden,
               act *out, act *scratch, int64_t rows, int threads) {
    if (!embed(t, ids, scratch, rows)) return 0;
    locate(at, d, rows, threads);
    embedded_rows(t, pages, d, scratch, hidden, out, scratch + rows * t->layer.output.outputs, rows, threads);
    return 1;
}

// The likeliest token behind each of the hidden states `given`. `scratch` has room for logits and a norm.
static void propose(const draft *t, const act *given, float eps, int64_t *tokens, act *scratch, int64_t rows,
                    int threads) {
    act *logits = scratch, *normed = logits + rows * t->head.outputs;
    if (t->head_norm) rms_norm(given, t->head_norm, normed, rows, t->layer.output.outputs, eps, threads);
    product(&t->head, t->head_norm ? normed : given, 0, logits, rows, threads);
    for (int64_t row = 0; row < rows; row++) tokens[row] = likeliest(t, logits + row * t->head.outputs);
}

// The decodes `wanted` of d. `room` has as many numbers for each as a row of the tables has, and two more. They have no
// trees.
static decodes chosen(const decodes *d, const int64_t *wanted, int64_t num_wanted, int64_t *room) {
    decodes some = *d;
    int64_t *lengths = room, *positions = lengths + num_wanted, *tables = positions + num_wanted;
    int64_t longest = 0;
    for (int64_t i = 0; i < num_wanted; i++) {
        lengths[i] = d->of.lengths[wanted[i]], positions[i] = d->of.positions[wanted[i]];
        longest = lengths[i] > longest ? lengths[i] : longest;
    }

    const int64_t num_pages = (longest + d->page_size - 1) / d->page_size;
    for (int64_t i = 0; i < num_wanted; i++)
        memcpy(tables + i * num_pages, d->of.tables + wanted[i] * d->of.table_stride, num_pages * sizeof *tables);
    some.of = (requests){.tables = tables, .lengths = lengths, .positions = positions, .table_stride = num_pages};
    return some;
}

// What draft_rows gives for the rows `wanted`: kept (num_wanted, hidden), and the likeliest token behind each. Of the
// other rows only K and V are computed. `scratch` has room for as many rows as there are, and `wanted` ones beside them;
// `room`: see `chosen`.
int draft_likeliest(const draft *t, kv *pages, const token_places *at, decodes *d, const int64_t *ids, const act *hidden,
                    const int64_t *wanted, int64_t num_wanted, int64_t *tokens, act *kept, int64_t *room, act *scratch,
                    int64_t rows, int threads) {
    const int64_t size = t->layer.output.outputs, q_size = d->num_heads * d->head_dim;
    act *embedded = scratch, *both = embedded + rows * size, *out = both + 2 * rows * size;
    act *q = out + rows * size, *rest = q + rows * q_size;
    if (!embed(t, ids, embedded, rows)) return 0;
    locate(at, d, rows, threads);
    const act *inputs = join(t, embedded, hidden, d->eps, out, both, rest, rows, threads);
    place_layer(&t->layer, pages, d, inputs, out, q, rest, rows, threads);

    const decodes some = chosen(d, wanted, num_wanted, room);
    act *some_q = rest, *others = some_q + num_wanted * q_size;
    for (int64_t i = 0; i < num_wanted; i++) {
        memcpy(kept + i * size, out + wanted[i] * size, size * sizeof(act));
        memcpy(some_q + i * q_size, q + wanted[i] * q_size, q_size * sizeof(act));
    }
    finish_layer(&t->layer, pages, &some, some_q, kept, others, num_wanted, threads);
    if (t->output_norm) rms_norm(kept, t->output_norm, kept, num_wanted, size, d->eps, threads);
    propose(t, kept, d->eps, tokens, others, num_wanted, threads);
    return 1;
}

// tokens (1 + steps, rows): `ids`, then the proposals of each step. The first reads the tokens `ids`, or 0 where one is
// below, and `hidden` states, each later one the token and the hidden state of the step before. `at` and d have steps
// times `rows` rows, step after step.
// `scratch`: `rows` rows each of embedded tokens and of two hidden states, and what a step needs.
int draft_chain(const draft *t, kv *pages, const token_places *at, decodes *d, const int64_t *ids, const act *hidden,
                int64_t *tokens, act *scratch, int64_t rows, int64_t steps, int threads) {
    const int64_t size = t->layer.output.outputs, half_dim = d->head_dim / 2;
    act *read = scratch, *given = read + rows * size, *before = given + rows * size, *rest = before + rows * size;
    for (int64_t row = 0; row < rows; row++) tokens[row] = ids[row] < 0 ? 0 : ids[row];
    if (!embed(t, tokens, read, rows)) return 0;
    memcpy(tokens, ids, rows * sizeof *ids);
    locate(at, d, rows * steps, threads);
    memcpy(before, hidden, rows * size * sizeof(act));
    for (int64_t step = 0; step < steps; step++) {
        tokens += rows;
        embedded_rows(t, pages, d, read, before, given, rest, rows, threads);
        propose(t, given, d->eps, tokens, rest, rows, threads);
        embed(t, tokens, read, rows);  // it knows them all: see CpuDraft.of

        act *kept = before;
        before = given, given = kept;
        d->cos_TF += rows * half_dim, d->sin_TF += rows * half_dim;
        d->k_rows += rows, d->v_rows += rows, d->of.lengths += rows, d->of.positions += rows;
    }
    return 1;
}
