// Attention of decodes over paged KV. Everything is float32 inside.
//
// Decodes that lie side by side and have the same pages are tokens of one row, as in the verification of a draft: they
// read each block of slots together. Each query's sums are its own, taken in one order: blocks begin at the same slots
// for all, and a slot that a query does not see is left out. So its result does not depend on the queries beside it.
//
// Built like cpu_kernels.c, but sums are taken as they are written: the code for eight queries gives the bits of the one
// for a single query.
#include <math.h>
#include <string.h>

#include "cpu_kernels.h"
#include "cpu_lanes.h"
#include "cpu_team.h"

#define D HEAD_DIM
#define BLOCK LANES  // slots at a time, one in each lane of a vector
#if LANES == 16
#define AT_ONCE 8    // queries that read a block out of registers
#else
#define AT_ONCE 4
#endif
#define TOKENS 16    // of a row that read together
#define QUERIES 16   // of a unit
#define UNITS 8      // that go through the pages together
_Static_assert(D % 2 == 0, "even and odd elements of a head have a sum each");

// K and V are read as words of 32 bits. A word of bfloat16 pages is two elements.
#ifdef PAGE_BF16
#define WORDS (D / 2)
#define OF_WORD 2
#else
#define WORDS D
#define OF_WORD 1
#endif
#define VECTORS ((WORDS + BLOCK - 1) / BLOCK)  // of words, in a head

// The slots that a token sees: [first, tree_start), and tree_start + i where bit i is set, but none from `length` on.
// Without a tree mask, tree_start is `length`.
typedef struct {
    int64_t first, length, tree_start;
    uint64_t bits;
} view;

static inline uint64_t below(int64_t count) { return count <= 0 ? 0 : count >= 64 ? ~0ull : (1ull << count) - 1; }

// Those of slots [start, start + count), a bit each.
static inline uint32_t seen_of(view v, int64_t start, int64_t count) {
    const int64_t behind = start - v.tree_start;
    uint64_t bits = below(-behind);
    if (behind >= 0) bits = behind < 64 ? v.bits >> behind : 0;
    else if (behind > -64) bits |= v.bits << -behind;
    return bits & below(lesser(v.length - start, count)) & ~below(v.first - start);
}

// Queries that read one kv head, and their softmax(q k) v over the slots so far. The sums are rescaled whenever a new
// maximum comes (Milakov and Gimelshein 2018). `query` is scaled already.
typedef struct {
    int64_t kv_head, first, count;  // of the queries of its row that read this kv head: tokens in turn, all heads of each
    int token[QUERIES];
    float best[QUERIES];
    lanes total[QUERIES];
    float query[QUERIES][D];
    lanes sum[QUERIES][VECTORS][OF_WORD];  // of each vector of words; the first elements of the words, the second ones
} unit;

// The elements of words: the first ones, the second ones.
static inline void elements_of(words w, lanes *elements) {
#ifdef PAGE_BF16
    elements[0] = (lanes)(w << 16), elements[1] = (lanes)(w & 0xffff0000u);
#else
    elements[0] = (lanes)w;
#endif
}

// Vector `i` of a head; zeros behind its end.
static inline words words_at(const kv *head, int i) {
    words w = {};
    memcpy(&w, (const uint32_t *)head + i * BLOCK, 4 * (WORDS - i * BLOCK < BLOCK ? WORDS - i * BLOCK : BLOCK));
    return w;
}

// turned[i] has word i of each of `count` slots' K; zeros in the other lanes.
static inline void turn_keys(const kv *k, int64_t count, int64_t token_stride, words *turned) {
#pragma GCC unroll 1
    for (int i = 0; i < VECTORS; i++) {
        words *rows = turned + i * BLOCK;
        for (int slot = 0; slot < BLOCK; slot++) rows[slot] = slot < count ? words_at(k + slot * token_stride, i) : (words){};
        transpose(rows);
    }
}

// score[i] = query[i] . k[slot], a slot in each lane.
static inline __attribute__((always_inline)) void score_block(const float (*query)[D], const int count,
                                                              const words *turned, lanes *score) {
    lanes even[AT_ONCE], odd[AT_ONCE];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) even[i] = odd[i] = (lanes){};
#pragma GCC unroll 1
    for (int d = 0; d < D; d += 2) {
        lanes k[2];
#ifdef PAGE_BF16
        elements_of(turned[d / 2], k);
#else
        elements_of(turned[d], k), elements_of(turned[d + 1], k + 1);
#endif
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) even[i] += query[i][d] * k[0], odd[i] += query[i][d + 1] * k[1];
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) score[i] = even[i] + odd[i];
}

// The weights of a block's slots for query i, of which it sees those in `seen`.
static inline lanes weights_of(unit *u, int64_t i, lanes score, uint32_t seen) {
    static const words bit_of = {EACH_LANE(BIT, 0)};
    const words mask = (words)((bit_of & seen) != 0);
    score = pick(mask, score, all(-INFINITY));

    if (has_larger(score, u->best[i])) {
        const float before = u->best[i], high = largest(larger(score, all(before)));
        const float shrink = exponential(all(before - high))[0];
        u->best[i] = high;
        u->total[i] *= shrink;
        for (int j = 0; j < VECTORS; j++)
            for (int part = 0; part < OF_WORD; part++) u->sum[i][j][part] *= shrink;
    }
    const lanes weights = (lanes)((words)exponential(score - u->best[i]) & mask);
    u->total[i] += weights;
    return weights;
}

// sum[i] += weights[i][slot] * v[slot] for slots [from, end).
static inline __attribute__((always_inline)) void add_values(lanes (*sum)[VECTORS][OF_WORD], const int count, const kv *v,
                                                             int64_t from, int64_t end, int64_t token_stride,
                                                             const float (*weights)[BLOCK]) {
#pragma GCC unroll 1
    for (int j = 0; j < VECTORS; j++) {
        lanes own[AT_ONCE][OF_WORD];
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            for (int part = 0; part < OF_WORD; part++) own[i][part] = sum[i][j][part];
#pragma GCC unroll 1
        for (int64_t slot = from; slot < end; slot++) {
            lanes value[OF_WORD];
            elements_of(words_at(v + slot * token_stride, j), value);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++)
                for (int part = 0; part < OF_WORD; part++) own[i][part] += weights[i][slot] * value[part];
        }
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            for (int part = 0; part < OF_WORD; part++) sum[i][j][part] = own[i][part];
    }
}

// Goes over one block with the queries [from, from + count) of the unit. The compiler knows `count`, so that K and V are
// widened once for all of them and sums stay in registers. V of a slot that only some see may be no number for others.
static inline __attribute__((always_inline)) void pass_block(unit *u, int64_t from, const int count, const words *turned,
                                                             const kv *v, int64_t token_stride, const uint32_t *seen) {
    lanes score[AT_ONCE];
    float weights[AT_ONCE][BLOCK] __attribute__((aligned(64)));
    uint32_t by_all = ~0u;
    score_block((const float(*)[D])(u->query + from), count, turned, score);
    for (int i = 0; i < count; i++) {
        const uint32_t own = seen[u->token[from + i]];
        by_all &= own;
        if (own) *(lanes *)weights[i] = weights_of(u, from + i, score[i], own);
    }

    const int64_t first_alone = by_all == ~0u ? BLOCK : __builtin_ctz(~by_all);
    add_values(u->sum + from, count, v, 0, first_alone, token_stride, (const float(*)[BLOCK])weights);
    for (int i = 0; i < count; i++) {
        for (uint32_t left = seen[u->token[from + i]] >> first_alone << first_alone; left; left &= left - 1) {
            const int64_t slot = __builtin_ctz(left);
            add_values(u->sum + from + i, 1, v, slot, slot + 1, token_stride, (const float(*)[BLOCK])(weights + i));
        }
    }
}

static void pass(unit *u, const words *turned, const kv *v, int64_t token_stride, const uint32_t *seen) {
    for (int64_t from = 0, count; from < u->count; from += count) {
        const int64_t left = u->count - from;
        count = left >= AT_ONCE ? AT_ONCE : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (count == 8) pass_block(u, from, AT_ONCE, turned, v, token_stride, seen);
        else if (count == 4) pass_block(u, from, 4, turned, v, token_stride, seen);
        else if (count == 2) pass_block(u, from, 2, turned, v, token_stride, seen);
        else pass_block(u, from, 1, turned, v, token_stride, seen);
    }
}

// `sink` is a score that joins the weights when all others are known, or NULL.
static void write_head(const unit *u, int64_t i, const float *sink, act *out) {
    float total = sum_of(u->total[i]), shrink = 1.0f;
    if (sink) {
        const float high = *sink > u->best[i] ? *sink : u->best[i];
        shrink = expf(u->best[i] - high), total = total * shrink + expf(*sink - high);
    }
    float values[VECTORS * BLOCK][OF_WORD];
    for (int j = 0; j < VECTORS; j++)
        for (int part = 0; part < OF_WORD; part++) {
            const lanes of_part = u->sum[i][j][part] * shrink / total;
            for (int lane = 0; lane < BLOCK; lane++) values[j * BLOCK + lane][part] = of_part[lane];
        }
    for (int d = 0; d < D; d++) out[d] = WRITE(values[d / OF_WORD][d % OF_WORD]);
}

typedef struct {
    const act *q;
    const kv *pages;
    requests of;
    scoring by;
    act *out;
    int64_t num_heads, num_kv_heads, page_size, decodes;
    int64_t num_pages;  // of the longest decode
    int64_t parts;      // of a row
} attend_job;

// The slots [start, start + count) of a row, which lie side by side in a page.
typedef struct {
    const kv *k, *v;
    int64_t start, count;
} block;

static inline block block_at(const attend_job *job, const int64_t *table, int64_t start, int64_t end) {
    if (start >= end) return (block){0};
    const int64_t offset = start % job->page_size, stride = job->num_kv_heads * D;
    const kv *k = job->pages + (table[start / job->page_size] * 2 * job->page_size + offset) * stride;
    return (block){k, k + job->page_size * stride, start, lesser(lesser(job->page_size - offset, BLOCK), end - start)};
}

// Pages lie anywhere: the hardware does not guess what comes next. Of slots [from, end) of the block, `bytes` are fetched
// from the element `at` on.
static inline void fetch(block next, int64_t from, int64_t end, int64_t token_stride, int64_t at, int64_t bytes) {
    for (int64_t slot = from; slot < end; slot++) {
        for (int64_t byte = 0; byte < bytes; byte += 64) {
            __builtin_prefetch((const char *)(next.k + slot * token_stride + at) + byte);
            __builtin_prefetch((const char *)(next.v + slot * token_stride + at) + byte);
        }
    }
}

// Whether two decodes are tokens of one row: they have the same pages.
static inline int same_row(const attend_job *job, int64_t one, int64_t other) {
    const int64_t *tables = job->of.tables, stride = job->of.table_stride;
    return !memcmp(tables + one * stride, tables + other * stride, job->num_pages * sizeof *tables);
}

// Tokens of a row that read together.
typedef struct {
    int64_t first, count;  // decodes [first, first + count)
    view views[TOKENS];
    int64_t begin, longest;  // slots: no token sees one before `begin`, or from `longest` on
} row;

// The first slot of the block that has this slot. Blocks begin where a page does, and every BLOCK slots from there on.
static inline int64_t block_start(const attend_job *job, int64_t slot) {
    const int64_t page = slot / job->page_size * job->page_size;
    return page + (slot - page) / BLOCK * BLOCK;
}

static inline row row_at(const attend_job *job, int64_t first, int64_t count) {
    row r = {first, count, {{0}}, INT64_MAX, 0};
    for (int64_t i = 0; i < count; i++) {
        const int64_t length = job->of.lengths[first + i];
        const int64_t behind = job->by.window ? job->of.positions[first + i] + 1 - job->by.window : 0;
        r.views[i] = (view){behind > 0 ? behind : 0, length, length, 0};
        if (job->of.tree_starts) {
            r.views[i].tree_start = job->of.tree_starts[first + i];
            r.views[i].bits = (uint64_t)job->of.tree_bits[first + i];
        }
        r.begin = lesser(r.begin, block_start(job, r.views[i].first));
        r.longest = length > r.longest ? length : r.longest;
    }
    return r;
}

// The units [start, start + count) of a row. Neighbouring units read neighbouring memory, so they go over a block in turn.
static void run_units(const attend_job *job, const row *r, int64_t start, int64_t count, int64_t of_kv_head) {
    const int64_t shared_by = job->num_heads / job->num_kv_heads, token_stride = job->num_kv_heads * D;
    const int64_t *table = job->of.tables + r->first * job->of.table_stride;
    const float scale = job->by.scale ? job->by.scale : 1.0f / sqrtf(D);
    unit units[UNITS];
    for (int64_t n = 0; n < count; n++) {
        unit *u = &units[n];
        u->kv_head = (start + n) / of_kv_head, u->first = (start + n) % of_kv_head * QUERIES;
        u->count = lesser(r->count * shared_by - u->first, QUERIES);
        for (int64_t i = 0; i < u->count; i++) {
            const int64_t token = (u->first + i) / shared_by, head = u->kv_head * shared_by + (u->first + i) % shared_by;
            const act *q = job->q + ((r->first + token) * job->num_heads + head) * D;
            u->token[i] = token, u->best[i] = -INFINITY, u->total[i] = (lanes){};
            for (int d = 0; d < D; d++) u->query[i][d] = READ(q[d]) * scale;
            memset(u->sum[i], 0, sizeof u->sum[i]);
        }
    }

    const int64_t kv_first = units[0].kv_head;
    const int64_t bytes = (units[count - 1].kv_head + 1 - kv_first) * D * sizeof(kv);
    uint32_t seen[TOKENS];
    words turned[VECTORS * BLOCK];
    for (block now = block_at(job, table, r->begin, r->longest); now.count;) {
        const block next = block_at(job, table, now.start + now.count, r->longest);
        uint32_t by_any = 0;
        for (int64_t i = 0; i < r->count; i++) by_any |= seen[i] = seen_of(r->views[i], now.start, now.count);
        for (int64_t n = 0; n < count && by_any; n++) {
            const int64_t kv_head = units[n].kv_head;
            fetch(next, next.count * n / count, next.count * (n + 1) / count, token_stride, kv_first * D, bytes);
            if (!n || units[n - 1].kv_head != kv_head) turn_keys(now.k + kv_head * D, now.count, token_stride, turned);
            pass(&units[n], turned, now.v + kv_head * D, token_stride, seen);
        }
        now = next;
    }
    for (int64_t n = 0; n < count; n++) {
        const unit *u = &units[n];
        for (int64_t i = 0; i < u->count; i++) {
            const int64_t head = u->kv_head * shared_by + (u->first + i) % shared_by;
            const float *sink = job->by.sinks ? job->by.sinks + head : 0;
            write_head(u, i, sink, job->out + ((r->first + u->token[i]) * job->num_heads + head) * D);
        }
    }
}

// Part i is some units of the tokens that begin with decode i / parts. There are none if it is not the first of TOKENS.
static void part_of_attention(const void *work, int64_t index) {
    const attend_job *job = work;
    const int64_t first = index / job->parts, part = index % job->parts;
    int64_t before = 0, count = 1;
    while (before < first && same_row(job, first, first - before - 1)) before++;
    if (before % TOKENS) return;
    while (count < TOKENS && first + count < job->decodes && same_row(job, first, first + count)) count++;

    const row r = row_at(job, first, count);
    const int64_t of_kv_head = (count * job->num_heads / job->num_kv_heads + QUERIES - 1) / QUERIES;
    const int64_t units = job->num_kv_heads * of_kv_head, end = units * (part + 1) / job->parts;
    for (int64_t start = units * part / job->parts; start < end; start += UNITS)
        run_units(job, &r, start, lesser(end - start, UNITS), of_kv_head);
}

// out (decodes, num_heads, D): each decode's one token over its own `lengths[decode]` slots, or those of its window.
// `pages` is (page, K or V, page_size, num_kv_heads, D), `tables` (decodes, table_stride) page numbers. `tree_starts` and
// `tree_bits` are NULL if every token sees all its slots. `positions` are read for a window only: with a tree mask a
// token's position is not the last slot of its context.
void attend(const act *q, const kv *pages, const requests *of, const scoring *by, act *out, int64_t decodes,
            int64_t num_heads, int64_t num_kv_heads, int64_t page_size, int threads) {
    attend_job job = {q, pages, *of, *by, out, num_heads, num_kv_heads, page_size, decodes, 0, 1};
    int64_t longest = 0, rows = 1;
    for (int64_t i = 0; i < decodes; i++) longest = of->lengths[i] > longest ? of->lengths[i] : longest;
    job.num_pages = (longest + page_size - 1) / page_size;

    // Enough parts for all threads; a part of fewer units reads less of each line of memory that it opens.
    if (threads > 1) {
        for (int64_t i = 1; i < decodes; i++) rows += !same_row(&job, i - 1, i);
        job.parts = lesser(num_kv_heads, (4 * threads + rows - 1) / rows);
    }
    team_run(part_of_attention, &job, decodes * job.parts, threads);
}
