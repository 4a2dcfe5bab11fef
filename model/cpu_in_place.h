// Products with weights that are read where they lie, as in a mapped file: for one type of rows and weights.
//
// The file that includes this defines NUMBER, the type; COUNT, how many of them a step takes; `numbers`, a vector of them;
// `multiply_add`, which adds the products of two vectors to a vector of sums; TO_FLOAT and FROM_FLOAT; and the names
// PRODUCT and PART of its two functions.
//
// Each output is one sum: every lane of a vector takes its inputs from the first to the last, then the lanes are added in
// one order. So it depends neither on the number of rows beside it nor on threads. Compile without -fassociative-math.
#include <string.h>

#include "cpu_lanes.h"
#include "cpu_products.h"
#include "cpu_team.h"

#define OUTPUTS 4  // of a tile
#if LANES == 16
#define MOST_ROWS 6  // of a tile: 24 sums, four vectors of weights and one of inputs fit into 32 registers
#else
#define MOST_ROWS 2  // into 16
#endif
#define ROWS_BYTES (1 << 18)  // of inputs that stay in the cache while weights pass by
#define PARTS 4               // of a product, for each thread

// `count` numbers, and zeros behind them.
static inline __attribute__((always_inline)) numbers some(const NUMBER *from, const int64_t count) {
    numbers read = {};
    memcpy(&read, from, count * sizeof *from);
    return read;
}

// The sums of `rows` rows by `outputs` outputs, both known to the compiler, so that they stay in registers.
static inline __attribute__((always_inline)) void tile(const linear *l, const NUMBER *x,
                                                       const NUMBER *weight, const int rows, const int outputs, float (*sums)[OUTPUTS]) {
    const int64_t inputs = l->inputs, whole = inputs / COUNT * COUNT;
    lanes sum[MOST_ROWS][OUTPUTS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < outputs; o++) sum[r][o] = (lanes){};
#define STEP(count)                                                                              \
    {                                                                                            \
        numbers w[OUTPUTS];                                                                      \
        for (int o = 0; o < outputs; o++) w[o] = some(weight + o * l->stride + i, count);        \
        for (int r = 0; r < rows; r++) {                                                         \
            const numbers own = some(x + r * inputs + i, count);                                 \
            for (int o = 0; o < outputs; o++) sum[r][o] = multiply_add(own, w[o], sum[r][o]);    \
        }                                                                                        \
    }
    int64_t i = 0;
    for (; i < whole; i += COUNT) STEP(COUNT)
    if (i < inputs) STEP(inputs - i)
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < outputs; o++) sums[r][o] = sum_of(sum[r][o]);
}

typedef struct {
    const linear *l;
    const NUMBER *x, *residual;
    NUMBER *out;
    int64_t rows, parts;
} job;

// out = sum + bias + residual for rows [row, row + rows) and outputs [first, first + outputs) of the job.
static void tiled(const job *j, int64_t row, int64_t rows, int64_t first, int64_t outputs) {
    const linear *l = j->l;
    const NUMBER *x = j->x + row * l->inputs, *weight = (const NUMBER *)l->weight + first * l->stride;
    float sums[MOST_ROWS][OUTPUTS];
    switch (rows * 8 + outputs) {
#define TILE(rows, outputs)                          \
    case rows * 8 + outputs:                         \
        tile(l, x, weight, rows, outputs, sums); \
        break;
        TILE(1, 1) TILE(2, 1) TILE(1, 4) TILE(2, 4)
#if MOST_ROWS > 2
        TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(3, 4) TILE(4, 4) TILE(5, 4) TILE(6, 4)
#endif
        default: __builtin_trap();
    }

    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outputs; o++) {
            const int64_t at = (row + r) * l->outputs + first + o;
            float sum = sums[r][o];
            if (l->bias) sum += l->bias[first + o];
            if (j->residual) sum += TO_FLOAT(j->residual[at]);
            j->out[at] = FROM_FLOAT(sum);
        }
}

static void part_of_product(const void *work, int64_t index) {
    const job *j = work;
    const linear *l = j->l;
    const int64_t tiles = (l->outputs + OUTPUTS - 1) / OUTPUTS;
    const int64_t start = tiles * index / j->parts * OUTPUTS;
    const int64_t end = lesser(tiles * (index + 1) / j->parts * OUTPUTS, l->outputs);
    const int64_t fit = ROWS_BYTES / (int64_t)(sizeof(NUMBER) * (l->inputs + 1)), most = fit < MOST_ROWS ? MOST_ROWS : fit;

    for (int64_t from = 0; from < j->rows; from += most) {
        const int64_t rows = lesser(j->rows - from, most), row_tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
        for (int64_t first = start, outputs; first < end; first += outputs) {
            outputs = end - first < OUTPUTS ? 1 : OUTPUTS;
            for (int64_t t = 0; t < row_tiles; t++) {
                const int64_t row = rows * t / row_tiles, until = rows * (t + 1) / row_tiles;
                tiled(j, from + row, until - row, first, outputs);
            }
        }
    }
}

void PART(const linear *l, const NUMBER *x, const NUMBER *residual, NUMBER *out, int64_t rows, int64_t index,
          int64_t parts) {
    const job work = {l, x, residual, out, rows, parts};
    part_of_product(&work, index);
}

void PRODUCT(const linear *l, const NUMBER *x, const NUMBER *residual, NUMBER *out, int64_t rows, int threads) {
    const int64_t tiles = (l->outputs + OUTPUTS - 1) / OUTPUTS, parts = lesser((tiles + 3) / 4, (int64_t)PARTS * threads);
    const job work = {l, x, residual, out, rows, parts};
    team_run(part_of_product, &work, rows ? parts : 0, threads);
}
