// Products of float32 rows with bfloat16 weights, for CPUs without instructions for bfloat16: half the bytes of float32.
// A weight is widened in a register, so a product is exact in float32, and sums are float32.
//
// Packed weights: see cpu_products.h.
//
// Each output is one sum, taken from the first input to the last by fused multiply-adds. So it depends neither on the
// number of rows beside it nor on threads. Compile without -fassociative-math. Without AVX2 and FMA there are no such
// products here.
#include "cpu_products.h"

#ifndef ACT_BF16

#include <math.h>
#include <string.h>

#include "cpu_team.h"

#define MOST_ROWS 5           // of a tile: ten sums, two vectors of weights and one of inputs fit into 16 registers
#define ROWS_BYTES (1 << 18)  // of inputs that stay in the cache while panels pass by
#define PARTS 4               // of a product, for each thread: a thread that is held up leaves the rest to others

#if defined(__AVX2__) && defined(__FMA__) && !defined(NO_PRODUCTS)
#include <immintrin.h>

int has_products(void) { return 1; }

#define VECTORS 2  // of a panel
typedef __m256 vector;
typedef __m256i pairs;
static inline vector zero(void) { return _mm256_setzero_ps(); }
static inline vector every(float x) { return _mm256_set1_ps(x); }
static inline pairs load(const bf16 *from) { return _mm256_loadu_si256((const __m256i *)from); }
static inline vector first(pairs w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
static inline vector second(pairs w) {
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000)));
}
static inline vector multiply_add(vector x, vector w, vector sum) { return _mm256_fmadd_ps(x, w, sum); }
static inline void store(float *to, vector sum) { _mm256_storeu_ps(to, sum); }

// The sums of `rows` rows by `panels` panels, both known to the compiler, so that they stay in registers. Those of panel
// p and row r go to sums[p][r].
static inline __attribute__((always_inline)) void tile(const linear *l, const float *x, int64_t panel, const int rows,
                                                       const int panels, float (*sums)[MOST_ROWS][PANEL]) {
    vector sum[4][MOST_ROWS][VECTORS];
    const int64_t size = panel_size(l), inputs = l->inputs;
    const bf16 *weight = (const bf16 *)l->weight + panel * size;
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 5
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[p][r][v] = zero();
    for (int64_t i = 0; i + 1 < inputs; i += 2) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const bf16 *from = weight + p * size + i * PANEL;
            vector w[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) w[v] = first(load(from + v * (2 * PANEL / VECTORS)));
#pragma GCC unroll 5
            for (int r = 0; r < rows; r++) {
                vector each = every(x[r * inputs + i]);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sum[p][r][v] = multiply_add(each, w[v], sum[p][r][v]);
            }
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) w[v] = second(load(from + v * (2 * PANEL / VECTORS)));
#pragma GCC unroll 5
            for (int r = 0; r < rows; r++) {
                vector each = every(x[r * inputs + i + 1]);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sum[p][r][v] = multiply_add(each, w[v], sum[p][r][v]);
            }
        }
    }
    if (inputs % 2)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                vector w = first(load(weight + p * size + (inputs - 1) * PANEL + v * (2 * PANEL / VECTORS)));
#pragma GCC unroll 5
                for (int r = 0; r < rows; r++)
                    sum[p][r][v] = multiply_add(every(x[r * inputs + inputs - 1]), w, sum[p][r][v]);
            }
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 5
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) store(&sums[p][r][v * (PANEL / VECTORS)], sum[p][r][v]);
}

// out = sum + bias + residual, for `rows` rows by the panels [first, end): MOST_ROWS and four at most.
static void tiled(const linear *l, const float *x, const float *residual, float *out, int64_t panel, int64_t end,
                  int64_t rows) {
    float sums[4][MOST_ROWS][PANEL];
    switch (rows * 8 + end - panel) {
#define TILE(rows, panels)                           \
    case rows * 8 + panels:                          \
        tile(l, x, panel, rows, panels, sums); \
        break;
        TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4) TILE(2, 1) TILE(2, 2) TILE(3, 1) TILE(3, 2)
        TILE(4, 1) TILE(5, 1)
        default: __builtin_trap();
    }

    for (int64_t p = panel; p < end; p++) {
        const int64_t start = p * PANEL, width = lesser(PANEL, l->outputs - start);
        for (int64_t r = 0; r < rows; r++) {
            float *sum = sums[p - panel][r];
            const int64_t at = r * l->outputs + start;
            if (l->bias)
                for (int64_t i = 0; i < width; i++) sum[i] += l->bias[start + i];
            if (residual)
                for (int64_t i = 0; i < width; i++) sum[i] += residual[at + i];
            memcpy(out + at, sum, width * sizeof(float));
        }
    }
}

// How many panels a tile of `rows` rows takes: there must be enough sums to keep the multipliers busy.
static inline int64_t panels_beside(int64_t rows) { return rows == 1 ? 4 : rows < 4 ? 2 : 1; }

typedef struct {
    const linear *l;
    const float *x, *residual;
    float *out;
    int64_t rows, panels, parts;
} job;

static void part_of_product(const void *work, int64_t index) {
    const job *j = work;
    const linear *l = j->l;
    const int64_t first_panel = j->panels * index / j->parts, end_panel = j->panels * (index + 1) / j->parts;
    const int64_t fit = ROWS_BYTES / (4 * (l->inputs + 1)) / MOST_ROWS * MOST_ROWS;
    const int64_t most = fit < MOST_ROWS ? MOST_ROWS : fit;

    for (int64_t from = 0; from < j->rows; from += most) {
        const int64_t rows = lesser(j->rows - from, most), tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
        const int64_t step = panels_beside((rows + tiles - 1) / tiles);
        for (int64_t panel = first_panel; panel < end_panel; panel += step)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t start = from + rows * t / tiles, end = from + rows * (t + 1) / tiles;
                const float *residual = j->residual ? j->residual + start * l->outputs : 0;
                float *out = j->out + start * l->outputs;
                tiled(l, j->x + start * l->inputs, residual, out, panel, lesser(end_panel, panel + step), end - start);
            }
    }
}

void product(const linear *l, const float *x, const float *residual, float *out, int64_t rows, int threads) {
    if (l->stride) {
        float32_product(l, x, residual, out, rows, threads);
        return;
    }
    const int64_t panels = (l->outputs + PANEL - 1) / PANEL;
    const int64_t parts = lesser((panels + 3) / 4, (int64_t)PARTS * threads);
    const job work = {l, x, residual, out, rows, panels, rows ? parts : 0};
    team_run(part_of_product, &work, work.parts, threads);
}

void product_part(const linear *l, const float *x, const float *residual, float *out, int64_t rows, int64_t index,
                  int64_t parts) {
    if (l->stride) {
        float32_part(l, x, residual, out, rows, index, parts);
        return;
    }
    const job work = {l, x, residual, out, rows, (l->outputs + PANEL - 1) / PANEL, parts};
    part_of_product(&work, index);
}

#else

int has_products(void) { return 0; }

void product(const linear *l, const float *x, const float *residual, float *out, int64_t rows, int threads) {
    if (!l->stride) __builtin_trap();
    float32_product(l, x, residual, out, rows, threads);
}

void product_part(const linear *l, const float *x, const float *residual, float *out, int64_t rows, int64_t index,
                  int64_t parts) {
    if (!l->stride) __builtin_trap();
    float32_part(l, x, residual, out, rows, index, parts);
}

#endif
#endif
