// Products of bfloat16 rows with bfloat16 weights, for CPUs that have AMX's tiles, or else AVX512's dot products.
// Sums are float32; bias and residual are added to them, and the result is rounded once.
//
// Packed weights: see cpu_products.h. 32 inputs of a panel are one tile, two inputs are one register.
//
// Each output is summed in one fixed order, which depends neither on the rows beside it nor on threads. Tiles and dot
// products have different orders. Compile without -fassociative-math.
#include "cpu_kernels.h"
#include "cpu_products.h"

#ifdef ACT_BF16

#include <string.h>

#include "cpu_team.h"

#define PARTS (int64_t)4       // of a product's panels, for each thread: one that is held up leaves the rest to others
#define GROUP_BYTES (1 << 19)  // of weights that stay in the cache while rows pass by
#define ROWS 256               // of a part, at least, if there are as many
#define TILE 16                // rows of a tile

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(NO_PRODUCTS)
#include <immintrin.h>

#if defined(__AMX_BF16__) && defined(__linux__) && !defined(NO_TILES)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

int has_products(void) { return 1; }

// The sums of some rows by some panels: sums[panel][row][output].
typedef float sums_of[4][2 * TILE][PANEL];

typedef struct {
    const linear *l;
    const bf16 *x, *residual;
    bf16 *out;
    int64_t rows, panels, row_parts, panel_parts;
} job;

// out = sum + bias + residual for rows [from, end) of the job. sums[panel][at] are those of row `first`.
static void finish(const job *j, sums_of sums, int64_t at, int64_t first, int64_t panel, int64_t panels, int64_t from,
                   int64_t end) {
    const linear *l = j->l;
    for (int64_t r = from; r < end; r++)
        for (int64_t p = 0; p < panels; p++) {
            const int64_t start = (panel + p) * PANEL, width = lesser(PANEL, l->outputs - start);
            const int64_t place = r * l->outputs + start;
            const __mmask16 some = (__mmask16)((1u << width) - 1);
            __m512 sum = _mm512_loadu_ps(sums[p][at + r - first]);
            if (l->bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, l->bias + start));
            if (j->residual) {
                const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, j->residual + place));
                sum = _mm512_add_ps(sum, (__m512)_mm512_slli_epi32(wide, 16));
            }
            _mm256_mask_storeu_epi16(j->out + place, some, (__m256i)_mm512_cvtneps_pbh(sum));
        }
}

// --- With dot products of pairs: tiles of up to MOST_ROWS rows by four panels, or one, stay in registers.
#define MOST_ROWS 6

static inline __attribute__((always_inline)) void dots(const linear *l, const bf16 *x, int64_t panel, const int rows,
                                                       const int panels, sums_of sums) {
    const int64_t size = panel_size(l), inputs = l->inputs;
    const bf16 *weight = (const bf16 *)l->weight + panel * size;
    __m512 sum[4][MOST_ROWS];
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) sum[p][r] = _mm512_setzero_ps();
#define STEP(bytes)                                                                              \
    {                                                                                            \
        __m512bh w[4];                                                                           \
        for (int p = 0; p < panels; p++)                                                         \
            w[p] = (__m512bh)_mm512_loadu_si512((const void *)(weight + p * size + i * PANEL));  \
        for (int r = 0; r < rows; r++) {                                                         \
            uint32_t pair = 0;                                                                   \
            memcpy(&pair, x + r * inputs + i, bytes);                                            \
            const __m512bh both = (__m512bh)_mm512_set1_epi32((int)pair);                        \
            for (int p = 0; p < panels; p++) sum[p][r] = _mm512_dpbf16_ps(sum[p][r], both, w[p]); \
        }                                                                                        \
    }
    int64_t i = 0;
    for (; i + 1 < inputs; i += 2) STEP(4)
    if (inputs % 2) STEP(2)
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) _mm512_storeu_ps(sums[p][r], sum[p][r]);
}

static void some_dots(const linear *l, const bf16 *x, int64_t panel, int64_t rows, int64_t panels, sums_of sums) {
    switch (rows * 8 + panels) {
#define DOTS(rows, panels)                   \
    case rows * 8 + panels:                  \
        dots(l, x, panel, rows, panels, sums); \
        break;
        DOTS(1, 1) DOTS(2, 1) DOTS(3, 1) DOTS(4, 1) DOTS(5, 1) DOTS(6, 1)
        DOTS(1, 4) DOTS(2, 4) DOTS(3, 4) DOTS(4, 4) DOTS(5, 4) DOTS(6, 4)
        default: __builtin_trap();
    }
}

static void by_dots(const job *j, int64_t first, int64_t end) {
    sums_of sums;
    const int64_t tiles = (j->rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t row = j->rows * t / tiles, until = j->rows * (t + 1) / tiles;
        for (int64_t panel = first, panels; panel < end; panel += panels) {
            panels = end - panel < 4 ? 1 : 4;
            some_dots(j->l, j->x + row * j->l->inputs, panel, until - row, panels, sums);
            finish(j, sums, 0, row, panel, panels, row, until);
        }
    }
}

#if HAS_TILES
// --- With tiles. Sums are tiles 0 to 3, rows 4 and 5, weights 6 and 7.

// Some virtual machines do not say how large a tile is: none is used there. Linux lets a process use them when it asks,
// and then every thread of it may.
static int ask_for_tiles(void) {
    unsigned a, b, c, d;
    const int told = __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && b == (8u << 16 | 64) && (c & 0xffff) == 16;
    return told && syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
}

static int may_use_tiles(void) {
    static _Atomic int known;  // 0: not asked yet, 1: no, 2: yes
    if (!known) known = 1 + ask_for_tiles();
    return known == 2;
}

static void set_tiles(int64_t rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) config.row_bytes[tile] = 64, config.rows[tile] = tile < 6 ? rows : 16;
    __asm__ volatile("" ::: "memory");  // a compiler may not know that all of it is read
    _tile_loadconfig(&config);
}

// The last inputs of TILE rows where they do not fill a tile, with zeros behind them.
typedef bf16 tail_of[TILE][2 * TILE];

static void copy_tail(const linear *l, const bf16 *x, int64_t rows, tail_of tail) {
    const int64_t whole = l->inputs / 32 * 32;
    memset(tail, 0, sizeof(tail_of));
    for (int64_t r = 0; r < rows; r++) memcpy(tail[r], x + r * l->inputs + whole, 2 * (l->inputs - whole));
}

#define EACH_STEP(body)                                                                \
    for (int64_t i = 0; i + 32 <= l->inputs; i += 32) {                                \
        const bf16 *a = x + i, *b = x + below * l->inputs + i, *w = weight + i * PANEL; \
        const int64_t stride = 2 * l->inputs;                                          \
        (void)b;                                                                       \
        body                                                                           \
    }                                                                                  \
    if (l->inputs % 32) {                                                              \
        const bf16 *a = tails[0][0], *b = tails[1][0], *w = weight + l->inputs / 32 * 32 * PANEL; \
        const int64_t stride = 64;                                                     \
        (void)b;                                                                       \
        body                                                                           \
    }

static inline void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static void four_panels(const linear *l, const bf16 *x, const bf16 *weight, tail_of *tails, sums_of sums) {
    const int64_t size = panel_size(l), below = 0;
    zero_sums();
    EACH_STEP({
        _tile_loadd(4, a, stride);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + size, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, w + 2 * size, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, w + 3 * size, 64);
        _tile_dpbf16ps(3, 4, 7);
    })
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
}

static void one_panel(const linear *l, const bf16 *x, const bf16 *weight, tail_of *tails, sums_of sums) {
    const int64_t below = 0;
    _tile_zero(0);
    EACH_STEP({
        _tile_loadd(4, a, stride);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
    })
    _tile_stored(0, sums[0], 64);
}

// Two tiles of rows by two panels, which may be the same. The second tile starts `below` rows behind the first.
static void two_by_two(const linear *l, const bf16 *x, int64_t below, const bf16 *weight, const bf16 *second,
                       tail_of *tails, sums_of sums) {
    const int64_t other = second - weight;
    zero_sums();
    EACH_STEP({
        _tile_loadd(4, a, stride);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + other, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, b, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    })
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[0][TILE], 64);
    _tile_stored(3, sums[1][TILE], 64);
}

// Rows [row, row + 2 * TILE) by the panels [first, end).
static void tiles_at(const job *j, int64_t row, int64_t first, int64_t end) {
    const linear *l = j->l;
    // The last tile of rows starts early enough to be whole. What another tile has computed, too, is not written twice.
    const int64_t in_tile = lesser(j->rows, TILE), last = j->rows - in_tile;
    const int64_t at = lesser(row, last), next = lesser(row + TILE, last), size = panel_size(l);
    const bf16 *x = j->x + at * l->inputs;
    tail_of tails[2];
    if (l->inputs % 32) {
        copy_tail(l, x, in_tile, tails[0]);
        copy_tail(l, x + (next - at) * l->inputs, in_tile, tails[1]);
    }
    __asm__ volatile("" ::: "memory");  // a compiler may not know that loading a tile reads memory

    sums_of sums;
    for (int64_t panel = first, panels; panel < end; panel += panels) {
        const bf16 *weight = (const bf16 *)l->weight + panel * size;
        const int64_t left = end - panel;
        if (next > at) {
            panels = left < 2 ? 1 : 2;
            two_by_two(l, x, next - at, weight, weight + (panels - 1) * size, tails, sums);
            finish(j, sums, TILE, next, panel, panels, row + TILE, next + in_tile);
        } else {
            panels = left < 4 ? 1 : 4;
            if (panels == 4) four_panels(l, x, weight, tails, sums);
            else one_panel(l, x, weight, tails, sums);
        }
        finish(j, sums, 0, at, panel, panels, row, at + in_tile);
    }
}

static void by_tiles(const job *j, int64_t first, int64_t end) {
    set_tiles(lesser(j->rows, TILE));
    for (int64_t row = 0; row < j->rows; row += 2 * TILE) tiles_at(j, row, first, end);
    _tile_release();
}
#endif

// A part is some rows by some panels. The panels pass in groups that stay in the cache, a few rows at a time.
static void part_of_product(const void *work, int64_t index) {
    const job *whole = work;
    const linear *l = whole->l;
    const int64_t fit = GROUP_BYTES / (2 * panel_size(l)) / 4 * 4, most = fit ? fit : 4;
    const int64_t row_part = index / whole->panel_parts, panel_part = index % whole->panel_parts;
    const int64_t row = whole->rows * row_part / whole->row_parts, start = row * l->outputs;
    const int64_t end = whole->panels * (panel_part + 1) / whole->panel_parts;
    job part = *whole;
    part.rows = whole->rows * (row_part + 1) / whole->row_parts - row;
    part.x += row * l->inputs, part.out += start;
    if (part.residual) part.residual += start;

    for (int64_t panel = whole->panels * panel_part / whole->panel_parts; panel < end; panel += most)
#if HAS_TILES
        if (may_use_tiles()) by_tiles(&part, panel, lesser(panel + most, end));
        else
#endif
            by_dots(&part, panel, lesser(panel + most, end));
}

void product(const linear *l, const bf16 *x, const bf16 *residual, bf16 *out, int64_t rows, int threads) {
    if (l->stride) {
        in_place_product(l, x, residual, out, rows, threads);
        return;
    }
    const int64_t panels = (l->outputs + PANEL - 1) / PANEL;
    const int64_t row_parts = rows / ROWS ? rows / ROWS : 1, panel_parts = lesser((panels + 3) / 4, PARTS * threads);
    const job work = {l, x, residual, out, rows, panels, row_parts, panel_parts};
    team_run(part_of_product, &work, rows ? row_parts * panel_parts : 0, threads);
}

void product_part(const linear *l, const bf16 *x, const bf16 *residual, bf16 *out, int64_t rows, int64_t index,
                  int64_t parts) {
    if (l->stride) {
        in_place_part(l, x, residual, out, rows, index, parts);
        return;
    }
    const job work = {l, x, residual, out, rows, (l->outputs + PANEL - 1) / PANEL, 1, parts};
    part_of_product(&work, index);
}

#else

int has_products(void) { return 0; }

void product(const linear *l, const bf16 *x, const bf16 *residual, bf16 *out, int64_t rows, int threads) {
    (void)l, (void)x, (void)residual, (void)out, (void)rows, (void)threads;
    __builtin_trap();
}

void product_part(const linear *l, const bf16 *x, const bf16 *residual, bf16 *out, int64_t rows, int64_t index,
                  int64_t parts) {
    (void)l, (void)x, (void)residual, (void)out, (void)rows, (void)index, (void)parts;
    __builtin_trap();
}

#endif
#endif
