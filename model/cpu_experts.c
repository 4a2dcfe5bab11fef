// A mixture of experts in one call: the router, the products of the experts that rows have, and their weighted sum.
//
//     route      logits -> scores -> the experts of each row, ascending, and their weights
//     group      (row, expert) pairs, an expert's pairs side by side, in the order of rows
//     each group of experts   gather rows | gate, up | silu(gate) * up, or gated_within | down | add to the rows' sums
//     finish     sum + shared expert, rounded; + residual
//
// Scores, weights and sums are float32. A row's experts are added in the order of their numbers, the shared one last. Each
// product is row-exact (cpu_products.h), and all else is computed row by row, so a row's result depends neither on the
// rows beside it nor on threads. Compile without -fassociative-math. Of equal scores the lower expert is chosen.
#include "cpu_experts.h"

#include <math.h>
#include <string.h>

#include "cpu_team.h"

#define LEAST_SUM 1e-20f    // added to the sum that weights are divided by
#define AT_ONCE 1024        // pairs of a group of experts, unless one expert has more
#define PARTS 4             // of a product, for each thread
#define SMALL 8192          // numbers of a part of a pass: fewer are not worth another thread
#define OUTSIDE 1           // flags of an expert: of a group that is not chosen
#define CHOSEN 2

// The memory of one call. Every array begins at a multiple of 64 bytes.
typedef struct {
    float *logits;           // (rows, count); then the scores
    float *ranked;           // (rows, count): the scores by which experts are chosen
    uint8_t *flags;          // (rows, count)
    int64_t *chosen;         // (rows, num_chosen)
    float *weights;          // (rows, num_chosen)
    int64_t *positions;      // (rows, num_chosen): where each pair lies among those of all experts
    int64_t *row_of;         // (pairs): the row of the pair at a position
    int64_t *starts;         // (count + 1): where the pairs of each expert begin
    int64_t *hit;            // (count): experts that have pairs, ascending
    float *wide;             // (rows, hidden): the input as float32, if it is not
    float *total;            // (rows, hidden)
    act *x, *gate_up, *inner, *y;  // of a group's pairs
    act *shared_gate_up, *shared_inner, *shared_y;
    int64_t bytes;
} rooms;

static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

static void *take(int64_t *bytes, void *room, int64_t size) {
    void *at = (char *)room + *bytes;
    *bytes += (size + 63) / 64 * 64;
    return at;
}

static int64_t pairs_at_once(const mixture *m, int64_t rows) { return lesser(rows * m->num_chosen, greater(rows, AT_ONCE)); }

static rooms rooms_of(const mixture *m, void *room, int64_t rows) {
    const int64_t count = m->router.outputs, hidden = m->router.inputs, inner = m->experts[0].down.inputs;
    const int64_t pairs = rows * m->num_chosen, most = pairs_at_once(m, rows);
    const int64_t shared = m->shared ? m->shared->down.inputs : 0;
    rooms r = {0};
    int64_t *bytes = &r.bytes;
    r.logits = take(bytes, room, rows * count * sizeof(float));
    r.ranked = take(bytes, room, rows * count * sizeof(float));
    r.flags = take(bytes, room, rows * count);
    r.chosen = take(bytes, room, pairs * sizeof(int64_t));
    r.weights = take(bytes, room, pairs * sizeof(float));
    r.positions = take(bytes, room, pairs * sizeof(int64_t));
    r.row_of = take(bytes, room, pairs * sizeof(int64_t));
    r.starts = take(bytes, room, (count + 1) * sizeof(int64_t));
    r.hit = take(bytes, room, count * sizeof(int64_t));
    r.wide = take(bytes, room, sizeof(act) == sizeof(float) ? 0 : rows * hidden * sizeof(float));
    r.total = take(bytes, room, rows * hidden * sizeof(float));
    r.x = take(bytes, room, most * hidden * sizeof(act));
    r.gate_up = take(bytes, room, most * 2 * inner * sizeof(act));
    r.inner = take(bytes, room, most * inner * sizeof(act));
    r.y = take(bytes, room, most * hidden * sizeof(act));
    r.shared_gate_up = take(bytes, room, rows * 2 * shared * sizeof(act));
    r.shared_inner = take(bytes, room, rows * shared * sizeof(act));
    r.shared_y = take(bytes, room, shared ? rows * hidden * sizeof(act) : 0);
    return r;
}

int64_t mix_bytes(const mixture *m, int64_t rows) { return rooms_of(m, 0, rows).bytes; }

typedef struct {
    const mixture *m;
    const act *given, *residual;
    act *out;
    const rooms *r;
    int64_t rows, parts;
    int64_t first_hit, num_hit, slices;    // of the group's experts, and of each one's products
    int64_t start, end;                    // positions of the group's pairs
} job;

#define EACH_ROW(row, j, index) \
    for (int64_t row = (j)->rows * (index) / (j)->parts; row < (j)->rows * ((index) + 1) / (j)->parts; row++)

static int64_t parts_of(int64_t rows, int64_t numbers) { return lesser(rows, rows * numbers / SMALL + 1); }

// --- The router.

static void score(const mixture *m, float *logits) {
    const int64_t count = m->router.outputs;
    if (m->sigmoid) {
        for (int64_t i = 0; i < count; i++) logits[i] = 1.0f / (1.0f + expf(-logits[i]));
        return;
    }
    float high = logits[0], sum = 0.0f;
    for (int64_t i = 1; i < count; i++) high = logits[i] > high ? logits[i] : high;
    for (int64_t i = 0; i < count; i++) sum += logits[i] = expf(logits[i] - high);
    for (int64_t i = 0; i < count; i++) logits[i] /= sum;
}

// The highest of those without a flag, of equal ones the first. NaN is no higher than any number.
static int64_t best_of(const float *ranked, const uint8_t *flags, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!flags[i] && (best < 0 || ranked[i] > ranked[best])) best = i;
    return best;
}

// Flags the experts outside of the groups whose best two scores are the highest together.
static void leave_groups(const mixture *m, const float *ranked, uint8_t *flags) {
    const int64_t size = m->router.outputs / m->num_groups;
    memset(flags, OUTSIDE, m->router.outputs);
    for (int64_t chosen = 0; chosen < m->num_chosen_groups; chosen++) {
        int64_t best = -1;
        float best_sum = 0.0f;
        for (int64_t group = 0; group < m->num_groups; group++) {
            if (!flags[group * size]) continue;
            float first = -INFINITY, second = -INFINITY;
            for (int64_t i = group * size; i < (group + 1) * size; i++) {
                if (ranked[i] > first) second = first, first = ranked[i];
                else if (ranked[i] > second) second = ranked[i];
            }
            if (best < 0 || first + second > best_sum) best = group, best_sum = first + second;
        }
        memset(flags + best * size, 0, size);
    }
}

static void route_row(const mixture *m, float *scores, float *ranked, uint8_t *flags, int64_t *chosen, float *weights) {
    const int64_t count = m->router.outputs;
    score(m, scores);
    for (int64_t i = 0; i < count; i++) ranked[i] = m->choice_bias ? scores[i] + m->choice_bias[i] : scores[i];
    memset(flags, 0, count);
    if (m->num_groups > 1) leave_groups(m, ranked, flags);

    for (int64_t k = 0; k < m->num_chosen; k++) flags[best_of(ranked, flags, count)] = CHOSEN;
    float sum = 0.0f;
    for (int64_t i = 0, k = 0; i < count; i++) {
        if (flags[i] != CHOSEN) continue;
        chosen[k] = i, weights[k] = scores[i], sum += scores[i];
        k++;
    }
    for (int64_t k = 0; k < m->num_chosen; k++) {
        if (m->normalised) weights[k] /= sum + LEAST_SUM;
        weights[k] *= m->scale;
    }
}

static void part_of_routing(const void *work, int64_t index) {
    const job *j = work;
    const int64_t count = j->m->router.outputs, num_chosen = j->m->num_chosen;
    EACH_ROW(row, j, index) {
        float *scores = j->r->logits + row * count, *ranked = j->r->ranked + row * count;
        route_row(j->m, scores, ranked, j->r->flags + row * count, j->r->chosen + row * num_chosen,
                  j->r->weights + row * num_chosen);
    }
}

static void route_rows(const mixture *m, const act *x, const rooms *r, int64_t rows, int threads) {
    const int64_t count = m->router.outputs, hidden = m->router.inputs;
#ifdef ACT_BF16
    for (int64_t i = 0; i < rows * hidden; i++) r->wide[i] = READ(x[i]);
    float32_product(&m->router, r->wide, 0, r->logits, rows, threads);
#else
    (void)hidden;
    float32_product(&m->router, x, 0, r->logits, rows, threads);
#endif
    const job work = {.m = m, .r = r, .rows = rows, .parts = parts_of(rows, count * m->num_chosen)};
    team_run(part_of_routing, &work, work.parts, threads);
}

void route(const mixture *m, const act *x, int64_t *chosen, float *weights, void *room, int64_t rows, int threads) {
    const rooms r = rooms_of(m, room, rows);
    route_rows(m, x, &r, rows, threads);
    memcpy(chosen, r.chosen, rows * m->num_chosen * sizeof *chosen);
    memcpy(weights, r.weights, rows * m->num_chosen * sizeof *weights);
}

// --- The experts.

// Sorts the pairs by expert, and within one by row. Returns how many experts have pairs.
static int64_t group_pairs(const mixture *m, const rooms *r, int64_t rows) {
    const int64_t count = m->router.outputs, num_chosen = m->num_chosen;
    int64_t num_hit = 0, next = 0;
    memset(r->starts, 0, (count + 1) * sizeof *r->starts);
    for (int64_t pair = 0; pair < rows * num_chosen; pair++) r->starts[r->chosen[pair]]++;
    for (int64_t e = 0; e <= count; e++) {
        const int64_t own = r->starts[e];
        r->starts[e] = next, next += own;
        if (own) r->hit[num_hit++] = e;
    }

    for (int64_t pair = 0; pair < rows * num_chosen; pair++) {
        const int64_t at = r->starts[r->chosen[pair]]++;
        r->positions[pair] = at, r->row_of[at] = pair / num_chosen;
    }
    memmove(r->starts + 1, r->starts, count * sizeof *r->starts);  // each now holds where the next one begins
    r->starts[0] = 0;
    return num_hit;
}

// The expert of a part of the group, its first pair within the group, and its number of pairs.
static inline const mlp *expert_at(const job *j, int64_t index, int64_t *first, int64_t *pairs) {
    const int64_t expert = j->r->hit[j->first_hit + index];
    *first = j->r->starts[expert] - j->start, *pairs = j->r->starts[expert + 1] - j->r->starts[expert];
    return &j->m->experts[expert];
}

static void part_of_gate_and_up(const void *work, int64_t index) {
    const job *j = work;
    int64_t first, pairs;
    const mlp *e = expert_at(j, index / j->slices, &first, &pairs);
    const int64_t inner = e->down.inputs, slice = index % j->slices;
    const act *x = j->r->x + first * j->m->router.inputs;
    act *gate_up = j->r->gate_up + first * 2 * inner;
    product_part(&e->gate, x, 0, gate_up, pairs, slice, j->slices);
    if (e->up.weight) product_part(&e->up, x, 0, gate_up + pairs * inner, pairs, slice, j->slices);
}

// Where gate and up of some rows lie, as part_of_gate_and_up and dense write them.
static void activate(const mlp *e, const act *gate_up, act *inner_values, int64_t rows, int threads) {
    const int64_t inner = e->down.inputs, stride = e->up.weight ? inner : 2 * inner;
    const act *up = gate_up + (e->up.weight ? rows * inner : inner);
    if (e->limit > 0) gated_within(gate_up, up, inner_values, rows, inner, stride, e->limit, e->alpha, threads);
    else gated(gate_up, up, inner_values, rows, inner, stride, threads);
}

static void part_of_activation(const void *work, int64_t index) {
    const job *j = work;
    int64_t first, pairs;
    const mlp *e = expert_at(j, index, &first, &pairs);
    activate(e, j->r->gate_up + first * 2 * e->down.inputs, j->r->inner + first * e->down.inputs, pairs, 1);
}

static void part_of_down(const void *work, int64_t index) {
    const job *j = work;
    int64_t first, pairs;
    const mlp *e = expert_at(j, index / j->slices, &first, &pairs);
    act *y = j->r->y + first * e->down.outputs;
    product_part(&e->down, j->r->inner + first * e->down.inputs, 0, y, pairs, index % j->slices, j->slices);
}

static void part_of_gather(const void *work, int64_t index) {
    const job *j = work;
    const int64_t hidden = j->m->router.inputs, pairs = j->end - j->start;
    for (int64_t i = pairs * index / j->parts; i < pairs * (index + 1) / j->parts; i++)
        memcpy(j->r->x + i * hidden, j->given + j->r->row_of[j->start + i] * hidden, hidden * sizeof(act));
}

// Adds the group's results to the rows' sums, in the order of experts.
static void part_of_addition(const void *work, int64_t index) {
    const job *j = work;
    const int64_t hidden = j->m->router.inputs, num_chosen = j->m->num_chosen;
    EACH_ROW(row, j, index) {
        float *total = j->r->total + row * hidden;
        for (int64_t k = row * num_chosen; k < (row + 1) * num_chosen; k++) {
            const int64_t at = j->r->positions[k];
            if (at < j->start || at >= j->end) continue;
            const act *y = j->r->y + (at - j->start) * hidden;
            const float weight = j->r->weights[k];
            for (int64_t i = 0; i < hidden; i++) total[i] += READ(y[i]) * weight;
        }
    }
}

static void part_of_finish(const void *work, int64_t index) {
    const job *j = work;
    const int64_t hidden = j->m->router.inputs;
    EACH_ROW(row, j, index) {
        const float *total = j->r->total + row * hidden;
        const act *shared = j->m->shared ? j->r->shared_y + row * hidden : 0;
        const act *residual = j->residual ? j->residual + row * hidden : 0;
        act *out = j->out + row * hidden;
        for (int64_t i = 0; i < hidden; i++) {
            const act rounded = WRITE(shared ? total[i] + READ(shared[i]) : total[i]);
            out[i] = residual ? WRITE(READ(residual[i]) + READ(rounded)) : rounded;
        }
    }
}

static void dense(const mlp *e, const act *x, const rooms *r, int64_t rows, int threads) {
    product(&e->gate, x, 0, r->shared_gate_up, rows, threads);
    if (e->up.weight) product(&e->up, x, 0, r->shared_gate_up + rows * e->down.inputs, rows, threads);
    activate(e, r->shared_gate_up, r->shared_inner, rows, threads);
    product(&e->down, r->shared_inner, 0, r->shared_y, rows, threads);
}

void mix(const mixture *m, const act *x, const act *residual, act *out, void *room, int64_t rows, int threads) {
    const rooms r = rooms_of(m, room, rows);
    const int64_t hidden = m->router.inputs, most = pairs_at_once(m, rows), row_parts = parts_of(rows, hidden);
    route_rows(m, x, &r, rows, threads);
    const int64_t num_hit = group_pairs(m, &r, rows);
    memset(r.total, 0, rows * hidden * sizeof(float));

    job work = {.m = m, .given = x, .residual = residual, .out = out, .r = &r, .rows = rows};
    for (int64_t first = 0; first < num_hit; first += work.num_hit) {
        // As many experts as there is room for: at least one.
        work.first_hit = first, work.num_hit = 1, work.start = r.starts[r.hit[first]];
        while (first + work.num_hit < num_hit && r.starts[r.hit[first + work.num_hit] + 1] - work.start <= most)
            work.num_hit++;
        work.end = r.starts[r.hit[first + work.num_hit - 1] + 1];
        work.slices = (PARTS * threads + work.num_hit - 1) / work.num_hit;

        work.parts = parts_of(work.end - work.start, hidden);
        team_run(part_of_gather, &work, work.parts, threads);
        team_run(part_of_gate_and_up, &work, work.num_hit * work.slices, threads);
        team_run(part_of_activation, &work, work.num_hit, threads);
        team_run(part_of_down, &work, work.num_hit * work.slices, threads);
        work.parts = row_parts;
        team_run(part_of_addition, &work, work.parts, threads);
    }

    if (m->shared) dense(m->shared, x, &r, rows, threads);
    work.parts = row_parts;
    team_run(part_of_finish, &work, work.parts, threads);
}
