// The C code of cpu_kernels.py: norms, rotation and placing of K and V, the gate, attention of decodes over paged KV.
// Each part only moves memory, in one pass. Everything is float32 inside.
//
// Built by model/cpu_kernels.py for one head size (HEAD_DIM), one type of activations (ACT_BF16 or float32) and one of
// pages (PAGE_BF16 or float32). Pointers are to row-major memory; strides count elements. Rows and requests are
// independent of one another, so that a request's result never depends on its neighbours.
#include "cpu_kernels.h"

#include <math.h>
#include <string.h>

#include "cpu_team.h"

#define D HEAD_DIM
#define HALF (HEAD_DIM / 2)
#define SMALL 8192  // elements of a part: fewer are not worth another thread

#ifdef PAGE_BF16
#define READ_KV(x) widen(x)
#define WRITE_KV(x) narrow(x)
#else
#define READ_KV(x) (x)
#define WRITE_KV(x) (x)
#endif

// e^x to a few units in the last place, in a form that compilers turn into vector instructions: 2^n times a polynomial
// on [-ln2/2, ln2/2] (Taylor's to the 7th power). NaN stays NaN.
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = fmaf(r, 1.0f / 5040, 1.0f / 720);
    p = fmaf(r, p, 1.0f / 120);
    p = fmaf(r, p, 1.0f / 24);
    p = fmaf(r, p, 1.0f / 6);
    p = fmaf(r, p, 0.5f);
    p = fmaf(r, p, 1.0f);
    p = fmaf(r, p, 1.0f);
    int32_t power = n == n ? (int32_t)n : 0;  // C has no integer for NaN
    return p * from_bits((uint32_t)(power + 127) << 23);
}

// Rows [from, to) of a job, part by part.
typedef struct {
    int64_t rows, parts;
} split;

static inline split split_rows(int64_t rows, int64_t elements) {
    return (split){rows, lesser(rows, elements / SMALL + 1)};
}

#define EACH_ROW(row, split, index) \
    for (int64_t row = (split).rows * (index) / (split).parts; row < (split).rows * ((index) + 1) / (split).parts; row++)

typedef struct {
    const act *x, *weight;
    act *out;
    int64_t width;
    float eps;
    split split;
} norm_job;

static void part_of_norm(const void *work, int64_t index) {
    const norm_job job = *(const norm_job *)work;
    EACH_ROW(row, job.split, index) {
        const act *from = job.x + row * job.width;
        act *to = job.out + row * job.width;
        float sum = 0.0f;
        for (int64_t i = 0; i < job.width; i++) sum += READ(from[i]) * READ(from[i]);
        float scale = 1.0f / sqrtf(sum / job.width + job.eps);
        for (int64_t i = 0; i < job.width; i++) to[i] = WRITE(READ(from[i]) * scale * READ(job.weight[i]));
    }
}

// out (rows, width) = x / sqrt(mean(x^2) + eps) * weight
void rms_norm(const act *x, const act *weight, act *out, int64_t rows, int64_t width, float eps, int threads) {
    const norm_job job = {x, weight, out, width, eps, split_rows(rows, rows * width)};
    team_run(part_of_norm, &job, job.split.parts, threads);
}

typedef struct {
    const act *gate, *up;
    act *out;
    int64_t width, stride;
    split split;
} gate_job;

static void part_of_gate(const void *work, int64_t index) {
    const gate_job job = *(const gate_job *)work;
    EACH_ROW(row, job.split, index) {
        const act *g = job.gate + row * job.stride, *u = job.up + row * job.stride;
        act *to = job.out + row * job.width;
        for (int64_t i = 0; i < job.width; i++) {
            float value = READ(g[i]);
            to[i] = WRITE(value / (1.0f + exponential(-value)) * READ(u[i]));
        }
    }
}

// out (rows, width) = silu(gate) * up
void gated(const act *gate, const act *up, act *out, int64_t rows, int64_t width, int64_t stride, int threads) {
    const gate_job job = {gate, up, out, width, stride, split_rows(rows, rows * width)};
    team_run(part_of_gate, &job, job.split.parts, threads);
}

// One head, normed (weight may be NULL) and turned by its position, as float32.
static inline void turn(const act *head, const act *weight, float eps, const float *cos_F, const float *sin_F,
                        float *to) {
    float x[D], scale = 1.0f;
    for (int d = 0; d < D; d++) x[d] = READ(head[d]);
    if (weight) {
        float sum = 0.0f;
        for (int d = 0; d < D; d++) sum += x[d] * x[d];
        scale = 1.0f / sqrtf(sum / D + eps);
        for (int d = 0; d < D; d++) x[d] *= scale * READ(weight[d]);
    }
    for (int d = 0; d < HALF; d++) {
        to[d] = x[d] * cos_F[d] - x[d + HALF] * sin_F[d];
        to[d + HALF] = x[d + HALF] * cos_F[d] + x[d] * sin_F[d];
    }
}

typedef struct {
    const act *q, *k, *v, *norm_ND;
    int64_t q_stride, k_stride, v_stride;
    float eps;
    const float *cos_TF, *sin_TF;
    const int64_t *k_rows, *v_rows;
    act *q_out;
    kv *pages;
    int64_t num_heads, num_kv_heads;
    split split;
} place_job;

static void part_of_place(const void *work, int64_t index) {
    const place_job job = *(const place_job *)work;
    const int64_t num_heads = job.num_heads, num_kv_heads = job.num_kv_heads;
    EACH_ROW(t, job.split, index) {
        float turned[D];
        const float *cos_F = job.cos_TF + t * HALF, *sin_F = job.sin_TF + t * HALF;
        for (int64_t head = 0; head < num_heads; head++) {
            const act *weight = job.norm_ND ? job.norm_ND + head * D : 0;
            turn(job.q + t * job.q_stride + head * D, weight, job.eps, cos_F, sin_F, turned);
            act *to = job.q_out + (t * num_heads + head) * D;
            for (int d = 0; d < D; d++) to[d] = WRITE(turned[d]);
        }
        kv *k_to = job.pages + job.k_rows[t] * num_kv_heads * D, *v_to = job.pages + job.v_rows[t] * num_kv_heads * D;
        for (int64_t head = 0; head < num_kv_heads; head++) {
            const act *weight = job.norm_ND ? job.norm_ND + (num_heads + head) * D : 0;
            turn(job.k + t * job.k_stride + head * D, weight, job.eps, cos_F, sin_F, turned);
            for (int d = 0; d < D; d++) k_to[head * D + d] = WRITE_KV(turned[d]);
        }
        for (int64_t i = 0; i < num_kv_heads * D; i++) v_to[i] = WRITE_KV(READ(job.v[t * job.v_stride + i]));
    }
}

// Queries to q_out (tokens, num_heads, D); K and V to their rows of a layer's pages, (row, num_kv_heads, D) each.
void place(const act *q, int64_t q_stride, const act *k, int64_t k_stride, const act *v, int64_t v_stride,
           const act *norm_ND, float eps, const float *cos_TF, const float *sin_TF, const int64_t *k_rows,
           const int64_t *v_rows, act *q_out, kv *pages, int64_t tokens, int64_t num_heads, int64_t num_kv_heads,
           int threads) {
    const split split = split_rows(tokens, tokens * (num_heads + 2 * num_kv_heads) * D);
    const place_job job = {q,      k,      v,      norm_ND, q_stride, k_stride, v_stride,     eps,  cos_TF,
                           sin_TF, k_rows, v_rows, q_out,   pages,    num_heads, num_kv_heads, split};
    team_run(part_of_place, &job, split.parts, threads);
}

#define BLOCK 16  // slots whose scores are held at a time
#define GROUP 8   // query heads that read K and V together
#define MOST_GROUPS 8  // of a part
#define CHUNK 32  // elements of V that are summed in registers
_Static_assert(D % 2 == 0, "head halves are turned into one another");

// The slots that a request's token sees: [0, tree_start), and tree_start + i where bit i is set, but none from `length`
// on. Without a tree mask, tree_start is `length`.
typedef struct {
    int64_t length, tree_start;
    uint64_t bits;
} view;

// The first slot from `slot` on that is seen; `length` if there is none.
static inline int64_t next_seen(view seen, int64_t slot) {
    int64_t behind = slot - seen.tree_start;
    if (behind >= 0) {
        uint64_t left = behind < 64 ? seen.bits >> behind : 0;
        slot = left ? slot + __builtin_ctzll(left) : seen.length;
    }
    return lesser(slot, seen.length);
}

// The first slot behind `slot`, which is seen, that is not.
static inline int64_t run_end(view seen, int64_t slot) {
    int64_t from = slot < seen.tree_start ? seen.tree_start : slot;
    uint64_t hidden = ~(seen.bits >> (from - seen.tree_start));
    return lesser(from + (hidden ? __builtin_ctzll(hidden) : 64), seen.length);
}

// What one pass_block reads: slots that follow one another in a page, all of them seen. `end` is behind them.
typedef struct {
    const kv *k, *v;
    int64_t count, end;
} block;

// The first one from `start` on. It has no slots if none is seen.
static inline block block_at(const kv *pages, const int64_t *table, int64_t start, view seen, int64_t page_size,
                             int64_t token_stride) {
    start = next_seen(seen, start);
    if (start == seen.length) return (block){0};
    int64_t offset = start % page_size;
    int64_t count = lesser(lesser(page_size - offset, run_end(seen, start) - start), BLOCK);
    const kv *k = pages + (table[start / page_size] * 2 * page_size + offset) * token_stride;
    return (block){k, k + page_size * token_stride, count, start + count};
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

// Query heads that read one kv head, and their softmax(q k) v over the slots so far, the sums rescaled whenever a new
// maximum comes (Milakov and Gimelshein 2018). `query` is scaled already.
typedef struct {
    int64_t heads, first, kv_head;  // query heads [first, first + heads)
    float best[GROUP], total[GROUP], query[GROUP][D], sum[GROUP][D];
} group;

#if defined(__AVX512F__) && defined(PAGE_BF16) && HEAD_DIM % 16 == 0
#include <immintrin.h>

// The sum of each of 16 vectors, in their order. Neighbours are added pair by pair, so that few shuffles do.
static inline __m512 sums_of_each(float (*parts)[16]) {
    __m512 four[4], eight[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512 two[2];
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512 a = _mm512_loadu_ps(parts[4 * i + 2 * j]), b = _mm512_loadu_ps(parts[4 * i + 2 * j + 1]);
            two[j] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        const __m512d a = _mm512_castps_pd(two[0]), b = _mm512_castps_pd(two[1]);
        four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m512 a = four[2 * i], b = four[2 * i + 1];
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    const __m512 a = eight[0], b = eight[1];
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// score[head][slot] = query[head] . k[slot]
static inline __attribute__((always_inline)) void score_block(const float (*query)[D], const int heads, const kv *k_at,
                                                              int64_t count, int64_t token_stride,
                                                              float (*score)[BLOCK]) {
    float parts[4][BLOCK][16];
    for (int64_t slot = 0; slot < count; slot++) {
        __m512 sum[4];
#pragma GCC unroll 8
        for (int d = 0; d < D; d += 16) {
            const __m256i narrow_k = _mm256_loadu_si256((const void *)(k_at + slot * token_stride + d));
            const __m512 k = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow_k), 16);
#pragma GCC unroll 4
            for (int head = 0; head < heads; head++) {
                const __m512 q = _mm512_loadu_ps(&query[head][d]);
                sum[head] = d ? _mm512_fmadd_ps(q, k, sum[head]) : _mm512_mul_ps(q, k);
            }
        }
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++) _mm512_storeu_ps(parts[head][slot], sum[head]);
    }
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++) {
        for (int64_t slot = count; slot < BLOCK; slot++) memset(parts[head][slot], 0, sizeof parts[head][slot]);
        _mm512_storeu_ps(score[head], sums_of_each(parts[head]));
    }
}
#else
static inline __attribute__((always_inline)) void score_block(const float (*query)[D], const int heads, const kv *k_at,
                                                              int64_t count, int64_t token_stride,
                                                              float (*score)[BLOCK]) {
    for (int64_t slot = 0; slot < count; slot++) {
        float k[D];
        for (int d = 0; d < D; d++) k[d] = READ_KV(k_at[slot * token_stride + d]);
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++) {
            float dot = 0.0f;
            for (int d = 0; d < D; d++) dot += query[head][d] * k[d];
            score[head][slot] = dot;
        }
    }
}
#endif

// Goes over one block, with the query heads [from, from + heads) of the group. The compiler knows `heads`, so that a
// slot's K and V are widened once for all of them and sums stay in registers.
static inline __attribute__((always_inline)) void pass_block(group *g, int64_t from, const int heads, const kv *k_at,
                                                             const kv *v_at, int64_t count, int64_t token_stride) {
    float score[4][BLOCK], *best = g->best + from, *total = g->total + from, (*sum)[D] = g->sum + from;
    score_block((const float(*)[D])(g->query + from), heads, k_at, count, token_stride, score);

    for (int head = 0; head < heads; head++) {
        float high = best[head], weight = 0.0f;
        for (int64_t slot = 0; slot < count; slot++) high = score[head][slot] > high ? score[head][slot] : high;
        if (high > best[head]) {
            float shrink = exponential(best[head] - high);
            best[head] = high;
            total[head] *= shrink;
            for (int d = 0; d < D; d++) sum[head][d] *= shrink;
        }
        for (int64_t slot = 0; slot < count; slot++) {
            score[head][slot] = exponential(score[head][slot] - high);
            weight += score[head][slot];
        }
        total[head] += weight;
    }

    for (int first = 0; first < D; first += CHUNK) {
        float part[4][CHUNK];
        const int width = D - first < CHUNK ? D - first : CHUNK;
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++)
            for (int d = 0; d < width; d++) part[head][d] = sum[head][first + d];
        for (int64_t slot = 0; slot < count; slot++) {
            float v[CHUNK];
            for (int d = 0; d < width; d++) v[d] = READ_KV(v_at[slot * token_stride + first + d]);
#pragma GCC unroll 4
            for (int head = 0; head < heads; head++)
                for (int d = 0; d < width; d++) part[head][d] += score[head][slot] * v[d];
        }
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++)
            for (int d = 0; d < width; d++) sum[head][first + d] = part[head][d];
    }
}

static void pass(group *g, block now, int64_t token_stride) {
    const kv *k = now.k + g->kv_head * D, *v = now.v + g->kv_head * D;
    for (int64_t first = 0, heads; first < g->heads; first += heads) {
        const int64_t left = g->heads - first;
        heads = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (heads == 4) pass_block(g, first, 4, k, v, now.count, token_stride);
        else if (heads == 2) pass_block(g, first, 2, k, v, now.count, token_stride);
        else pass_block(g, first, 1, k, v, now.count, token_stride);
    }
}

typedef struct {
    const act *q;
    const kv *pages;
    const int64_t *tables, *lengths, *tree_starts, *tree_bits;
    act *out;
    int64_t table_stride, num_heads, num_kv_heads, page_size;
    int64_t groups, parts;  // of a request
} attend_job;

// Part i is some groups of one request. Neighbouring groups read neighbouring memory, so they go over a block in turn.
static void part_of_attention(const void *work, int64_t index) {
    const attend_job job = *(const attend_job *)work;
    const int64_t request = index / job.parts, part = index % job.parts, token_stride = job.num_kv_heads * D;
    const int64_t shared_by = job.num_heads / job.num_kv_heads, of_kv_head = job.groups / job.num_kv_heads;
    const int64_t start = job.groups * part / job.parts, count = job.groups * (part + 1) / job.parts - start;
    const int64_t length = job.lengths[request], *table = job.tables + request * job.table_stride;
    const float scale = 1.0f / sqrtf(D);
    view seen = {length, length, 0};
    if (job.tree_starts) seen.tree_start = job.tree_starts[request], seen.bits = (uint64_t)job.tree_bits[request];

    group groups[MOST_GROUPS];
    for (int64_t i = 0; i < count; i++) {
        group *g = &groups[i];
        g->kv_head = (start + i) / of_kv_head;
        const int64_t within = (start + i) % of_kv_head * GROUP;
        g->first = g->kv_head * shared_by + within, g->heads = lesser(shared_by - within, GROUP);
        const act *q = job.q + (request * job.num_heads + g->first) * D;
        for (int64_t head = 0; head < g->heads; head++) {
            g->best[head] = -INFINITY, g->total[head] = 0.0f;
            for (int d = 0; d < D; d++) g->query[head][d] = READ(q[head * D + d]) * scale, g->sum[head][d] = 0.0f;
        }
    }

    const int64_t kv_first = start / of_kv_head, kv_last = (start + count - 1) / of_kv_head;
    const int64_t bytes = (kv_last + 1 - kv_first) * D * sizeof(kv);
    block now = block_at(job.pages, table, 0, seen, job.page_size, token_stride);
    while (now.count) {
        block next = block_at(job.pages, table, now.end, seen, job.page_size, token_stride);
        for (int64_t i = 0; i < count; i++) {
            fetch(next, next.count * i / count, next.count * (i + 1) / count, token_stride, kv_first * D, bytes);
            pass(&groups[i], now, token_stride);
        }
        now = next;
    }
    for (int64_t i = 0; i < count; i++) {
        const group *g = &groups[i];
        act *out = job.out + (request * job.num_heads + g->first) * D;
        for (int64_t head = 0; head < g->heads; head++)
            for (int d = 0; d < D; d++) out[head * D + d] = WRITE(g->sum[head][d] / g->total[head]);
    }
}

// out (requests, num_heads, D): each request's one token over its own `lengths[request]` slots. `pages` is
// (page, K or V, page_size, num_kv_heads, D), `tables` (requests, table_stride) page numbers. `tree_starts` and
// `tree_bits` are NULL if every token sees all its slots.
void attend(const act *q, const kv *pages, const int64_t *tables, int64_t table_stride, const int64_t *lengths,
            const int64_t *tree_starts, const int64_t *tree_bits, act *out, int64_t requests, int64_t num_heads,
            int64_t num_kv_heads, int64_t page_size, int threads) {
    const int64_t shared_by = num_heads / num_kv_heads, groups = num_kv_heads * ((shared_by + GROUP - 1) / GROUP);
    // Enough parts for all threads; a part of fewer groups reads less of each line of memory that it opens.
    const int64_t wanted = threads < 2 ? 1 : (4 * threads + requests - 1) / (requests ? requests : 1);
    const int64_t least = (groups + MOST_GROUPS - 1) / MOST_GROUPS;
    const int64_t parts = lesser(groups, wanted < least ? least : wanted);
    const attend_job job = {q,   pages,        tables,    lengths,      tree_starts, tree_bits, out, table_stride,
                            num_heads, num_kv_heads, page_size, groups, parts};
    team_run(part_of_attention, &job, requests * parts, threads);
}
