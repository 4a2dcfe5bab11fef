// The C code of cpu_kernels.py: norms, rotation and placing of K and V, the gate.
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
_Static_assert(D % 2 == 0, "head halves are turned into one another");
#define SMALL 8192  // elements of a part: fewer are not worth another thread

#ifdef PAGE_BF16
#define WRITE_KV(x) narrow(x)
#else
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
    float limit, alpha;
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
    const gate_job job = {gate, up, out, width, stride, 0.0f, 0.0f, split_rows(rows, rows * width)};
    team_run(part_of_gate, &job, job.split.parts, threads);
}

static void part_of_gate_within(const void *work, int64_t index) {
    const gate_job job = *(const gate_job *)work;
    EACH_ROW(row, job.split, index) {
        const act *g = job.gate + row * job.stride, *u = job.up + row * job.stride;
        act *to = job.out + row * job.width;
        for (int64_t i = 0; i < job.width; i++) {
            float value = READ(g[i]), factor = READ(u[i]);
            value = value > job.limit ? job.limit : value;  // NaN stays NaN
            factor = factor > job.limit ? job.limit : factor < -job.limit ? -job.limit : factor;
            to[i] = WRITE((factor + 1.0f) * (value / (1.0f + exponential(-job.alpha * value))));
        }
    }
}

// out (rows, width) = (up + 1) * gate * sigmoid(alpha * gate). The gate is at most `limit`, and up lies within it.
void gated_within(const act *gate, const act *up, act *out, int64_t rows, int64_t width, int64_t stride, float limit,
                  float alpha, int threads) {
    const gate_job job = {gate, up, out, width, stride, limit, alpha, split_rows(rows, rows * width)};
    team_run(part_of_gate_within, &job, job.split.parts, threads);
}

typedef struct {
    const int64_t *positions;
    const float *inv_freq_F;
    float *cos_TF, *sin_TF;
    split split;
} rotation_job;

static void part_of_rotation(const void *work, int64_t index) {
    const rotation_job job = *(const rotation_job *)work;
    EACH_ROW(t, job.split, index) {
        for (int f = 0; f < HALF; f++) {
            const float angle = (float)job.positions[t] * job.inv_freq_F[f];
            job.cos_TF[t * HALF + f] = cosf(angle), job.sin_TF[t * HALF + f] = sinf(angle);
        }
    }
}

// cos and sin of each token's angles, (tokens, HALF) each.
void rotation(const int64_t *positions, const float *inv_freq_F, float *cos_TF, float *sin_TF, int64_t tokens,
              int threads) {
    const rotation_job job = {positions, inv_freq_F, cos_TF, sin_TF, split_rows(tokens, tokens * D)};
    team_run(part_of_rotation, &job, job.split.parts, threads);
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
