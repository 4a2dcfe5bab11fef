// A draft of one layer in one call: a forward of it, or a chain of proposals.
// Each proposal is the likeliest token behind the one before. The same kernels and products in the same order as
// LoadedDraft calls, so the same bits.
#include <string.h>

#include "cpu_layers.h"

// Rows of `from`, normed if there is a norm, into every second half-row of `to`.
static void half(const act *from, const act *norm, act *normed, act *to, int64_t rows, int64_t size, float eps,
                 int threads) {
    if (norm) rms_norm(from, norm, normed, rows, size, eps, threads);
    const act *halves = norm ? normed : from;
    for (int64_t row = 0; row < rows; row++) memcpy(to + 2 * row * size, halves + row * size, size * sizeof(act));
}

// out (rows, hidden): what the layer gives for these embedded tokens and hidden states. Writes K and V of the rows.
// `scratch` has room for the halves and what run_layer needs: see numbers_of_a_row in cpu_draft.py.
void draft_rows(const draft *t, kv *pages, const decodes *d, const act *embedded, const act *hidden, act *out,
                act *scratch, int64_t rows, int threads) {
    const int64_t size = t->layer.output.outputs;
    act *both = scratch, *rest = both + 2 * rows * size;
    half(embedded, t->token_norm, rest, both + (t->hidden_first ? size : 0), rows, size, d->eps, threads);
    half(hidden, t->hidden_norm, rest, both + (t->hidden_first ? 0 : size), rows, size, d->eps, threads);

    if (t->project.weight) {
        product(&t->project, both, 0, out, rows, threads);
        run_layer(&t->layer, pages, d, 0, out, rest, rows, threads);
    } else {
        memcpy(out, hidden, rows * size * sizeof(act));
        run_layer(&t->layer, pages, d, both, out, rest, rows, threads);
    }
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

// The scratch of draft_chain: `rows` rows each of embedded tokens, of what the layer gives, of logits; then that of
// draft_rows.
//
// tokens (steps, rows): the proposals of each step. The first reads `embedded` tokens and `hidden` states, each later one
// the token and the hidden state of the step before. d has steps times `rows` rows, step after step.
void draft_chain(const draft *t, kv *pages, const decodes *d, const act *embedded, const act *hidden, int64_t *tokens,
                 act *scratch, int64_t rows, int64_t steps, int threads) {
    const int64_t size = t->layer.output.outputs, half_dim = d->head_dim / 2;
    act *read = scratch, *given = read + rows * size, *before = given + rows * size, *logits = before + rows * size;
    act *rest = logits + rows * t->head.outputs;
    decodes now = *d;

    memcpy(read, embedded, rows * size * sizeof(act));
    memcpy(before, hidden, rows * size * sizeof(act));
    for (int64_t step = 0; step < steps; step++) {
        draft_rows(t, pages, &now, read, before, given, rest, rows, threads);
        if (t->head_norm) rms_norm(given, t->head_norm, rest, rows, size, d->eps, threads);
        product(&t->head, t->head_norm ? rest : given, 0, logits, rows, threads);

        for (int64_t row = 0; row < rows; row++) {
            const int64_t token = tokens[step * rows + row] = likeliest(t, logits + row * t->head.outputs);
            memcpy(read + row * size, t->embedding + token * size, size * sizeof(act));
        }
        act *kept = before;
        before = given, given = kept;
        now.cos_TF += rows * half_dim, now.sin_TF += rows * half_dim;
        now.k_rows += rows, now.v_rows += rows, now.lengths += rows;
    }
}
