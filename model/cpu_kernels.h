// The kernels that cpu_layers.c calls: of one head size, one type of activations and one of pages.
// HEAD_DIM, ACT_BF16 (else float32) and PAGE_BF16 (else float32) name them. cpu_kernels.c and cpu_attention.c say what
// each computes. `threads` is how many threads it uses at most.
#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H
#include <stdint.h>
#include <string.h>

#ifdef ACT_BF16
typedef uint16_t act;
#else
typedef float act;
#endif

#ifdef PAGE_BF16
typedef uint16_t kv;
#else
typedef float kv;
#endif

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// bfloat16 is the upper half of a float32; rounded to nearest, ties to even, NaN kept.
static inline float widen(uint16_t half) { return from_bits((uint32_t)half << 16); }

static inline uint16_t narrow(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

#ifdef ACT_BF16
#define READ(x) widen(x)
#define WRITE(x) narrow(x)
#else
#define READ(x) (x)
#define WRITE(x) (x)
#endif

void rms_norm(const act *x, const act *weight, act *out, int64_t rows, int64_t width, float eps, int threads);

void gated(const act *gate, const act *up, act *out, int64_t rows, int64_t width, int64_t stride, int threads);

void gated_within(const act *gate, const act *up, act *out, int64_t rows, int64_t width, int64_t stride, float limit,
                  float alpha, int threads);

void rotation(const int64_t *positions, const float *inv_freq_F, float *cos_TF, float *sin_TF, int64_t tokens,
              int threads);

void place(const act *q, int64_t q_stride, const act *k, int64_t k_stride, const act *v, int64_t v_stride,
           const act *norm_ND, float eps, const float *cos_TF, const float *sin_TF, const int64_t *k_rows,
           const int64_t *v_rows, act *q_out, kv *pages, int64_t tokens, int64_t num_heads, int64_t num_kv_heads,
           int threads);

// How a layer weighs the tokens that it sees.
typedef struct {
    const float *sinks;  // of each head: a score that has no value, only a share of the weights. Or NULL
    int64_t window;      // tokens that a token sees, itself and those before it; 0: all
    float scale;         // of the products of queries and keys; 0: 1 / sqrt(HEAD_DIM)
} scoring;

// The requests of decodes. `lengths` and `positions` have one number for each.
typedef struct {
    const int64_t *tables, *lengths, *positions;
    const int64_t *tree_starts, *tree_bits;  // or NULL
    int64_t table_stride;
} requests;

void attend(const act *q, const kv *pages, const requests *of, const scoring *by, act *out, int64_t decodes,
            int64_t num_heads, int64_t num_kv_heads, int64_t page_size, int threads);
#endif
