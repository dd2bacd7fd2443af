/* Linears whose rows do not feel each other. */
#include "tiles.h"

/* 1 if this CPU and system can run what was compiled here. */
EXPORT int longturn_ready(void) { return tiles_allowed(); }

enum {
    COLUMNS = 2 * LANES, /* outputs computed together: a panel */
    BLOCK = 256,         /* rows that a thread takes at a time */
    MOST_ROWS = 12,      /* whose sums fit in the registers of a CPU without tiles */
    FEW = 2 * LANES,     /* rows up to which a step waits for memory */
    SOON = 4 * DEPTH * LANES, /* numbers of a weight that are fetched ahead where rows are too few to hide the wait */
};
enum operation { NONE, SWISH, ADD, MULTIPLY, WIDE };

/* Numbers of 16 bits that one result takes: WIDE leaves it as a float. */
static inline long size_of_one(const struct linear *linear) { return linear->operation == WIDE ? 2 : 1; }

/* weight [n_out, n_in] to panels [n_out / 32][n_in / 2 pairs][32][2], zeros beyond the last output, so that a panel is
 * read from its beginning to its end: nothing else comes from memory as fast. n_in is a multiple of 32. */
EXPORT void longturn_pack(const bf16 *weight, bf16 *packed, int64_t n_out, int64_t n_in, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long tile = 0; tile < round_up(n_out, COLUMNS) / LANES; tile++)
        for (long at = 0; at < n_in; at += DEPTH) {
            __m512i r[LANES];
            for (long i = 0; i < LANES; i++) {
                long row = tile * LANES + i;
                r[i] = row < n_out ? _mm512_loadu_si512(weight + row * n_in + at) : _mm512_setzero_si512();
            }
            transpose(r);
            bf16 *to = packed + (tile / 2 * n_in + at) * COLUMNS + tile % 2 * 2 * LANES;
            for (long i = 0; i < LANES; i++) _mm512_store_si512(to + i * 2 * COLUMNS, r[i]);
        }
}

static inline __m512 applied(enum operation operation, __m512 y, __m512 other) {
    if (operation == ADD) return _mm512_add_ps(y, other);
    if (operation == MULTIPLY) return _mm512_mul_ps(y, other);
    if (operation == NONE || operation == WIDE) return y;
    __m512 power = _mm512_min_ps(_mm512_mul_ps(y, _mm512_set1_ps(-1.4426950408889634f)), _mm512_set1_ps(126.0f));
    return _mm512_div_ps(y, _mm512_add_ps(_mm512_set1_ps(1.0f), power_of_two(power)));
}

/* Sums of rows of one panel, [2][..][16], that are still to be finished and written. */
struct pending {
    float sums[2][2 * LANES * LANES] __attribute__((aligned(64)));
    const bf16 *other;
    bf16 *out;
    long column, next, rows;
};

/* Finish and write at most n more rows. */
static inline __attribute__((always_inline)) void finish(const struct linear *linear, struct pending *pending, long n) {
    if (pending->next == pending->rows) return;
    enum operation operation = (enum operation)linear->operation;
    long column = pending->column, left = linear->n_out - column, stop = least(pending->rows, pending->next + n);
    __mmask16 low = first_lanes(left), high = left > LANES ? first_lanes(left - LANES) : 0;
    __m512 bias_low = _mm512_setzero_ps(), bias_high = bias_low, beside_low = bias_low, beside_high = bias_low;
    if (linear->bias) {
        bias_low = _mm512_maskz_loadu_ps(low, linear->bias + column);
        bias_high = _mm512_maskz_loadu_ps(high, linear->bias + column + LANES);
    }
    for (; pending->next < stop; pending->next++) {
        long i = pending->next, at = i * linear->n_out + column;
        if (pending->other) {
            __m512i both = _mm512_maskz_loadu_epi16((__mmask32)high << 16 | low, pending->other + at);
            beside_low = widened(_mm512_castsi512_si256(both));
            beside_high = widened(_mm512_extracti64x4_epi64(both, 1));
        }
        __m512 y = applied(operation, _mm512_add_ps(_mm512_load_ps(pending->sums[0] + i * LANES), bias_low), beside_low);
        __m512 z = applied(operation, _mm512_add_ps(_mm512_load_ps(pending->sums[1] + i * LANES), bias_high), beside_high);
        if (operation == WIDE) {
            float *to = (float *)pending->out + at;
            _mm512_mask_storeu_ps(to, low, y);
            _mm512_mask_storeu_ps(to + LANES, high, z);
            continue;
        }
        _mm512_mask_storeu_epi16(pending->out + at, (__mmask32)high << 16 | low, (__m512i)_mm512_cvtne2ps_pbh(z, y));
    }
}

/* Rows of x times one panel: sums are added up in the order of inputs, whatever the number of rows. */
#ifdef __AMX_BF16__
/* While the tiles are busy with some rows, those before are finished. */
static void multiply(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, long rows, long panel) {
    long n_in = linear->n_in, n_out = linear->n_out, stride = n_in * sizeof(bf16);
    long at_a_time = round_up(2 * LANES * DEPTH, n_in) / n_in;
    const bf16 *packed = linear->packed + panel * COLUMNS * n_in;
    struct pending all[2];
    struct pending *now = &all[0], *before = &all[1];
    before->next = before->rows = 0;
    int few = rows <= FEW;
    for (long row = 0; row < rows; row += now->rows, now = before, before = now == all ? all + 1 : all) {
        long n = least(2 * LANES, rows - row);
        if (n < 2 * LANES) n = least(LANES, n);
        const bf16 *above = x + row * n_in, *below = above + LANES * n_in, *b = packed;
        now->other = other ? other + row * n_out : NULL;
        now->out = out + row * n_out * size_of_one(linear);
        now->column = panel * COLUMNS;
        now->next = 0;
        now->rows = n;
        for (long i = 0; i < n; i++) __builtin_prefetch(now->out + (i * n_out + now->column) * size_of_one(linear), 1);
        if (n < LANES) tiles_on(n);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long at = 0; at < n_in; at += DEPTH, b += DEPTH * COLUMNS) {
            for (long i = 0; few && i < DEPTH * COLUMNS; i += 32) __builtin_prefetch(b + SOON + i);
            _tile_loadd(4, above + at, stride);
            _tile_loadd(6, b, 2 * COLUMNS * sizeof(bf16));
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + COLUMNS, 2 * COLUMNS * sizeof(bf16));
            _tile_dpbf16ps(1, 4, 7);
            if (n > LANES) {
                _tile_loadd(5, below + at, stride);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            finish(linear, before, at_a_time);
        }
        finish(linear, before, 2 * LANES);
        _tile_stored(0, now->sums[0], 64);
        _tile_stored(1, now->sums[1], 64);
        if (n > LANES) {
            _tile_stored(2, now->sums[0] + LANES * LANES, 64);
            _tile_stored(3, now->sums[1] + LANES * LANES, 64);
        }
        if (n < LANES) tiles_on(LANES);
    }
    finish(linear, before, 2 * LANES);
}

#else
/* Sums of n rows of x, at most MOST_ROWS; a constant to the compiler, which keeps them in registers. */
static inline __attribute__((always_inline)) void accumulate(long n, const bf16 *x, const bf16 *b, long n_in,
                                                             struct pending *pending) {
    __m512 low[MOST_ROWS], high[MOST_ROWS];
    for (long i = 0; i < n; i++) low[i] = high[i] = _mm512_setzero_ps();
    for (long at = 0; at < n_in; at += 2, b += 2 * COLUMNS) {
        __m512bh b_low = (__m512bh)_mm512_load_si512(b), b_high = (__m512bh)_mm512_load_si512(b + COLUMNS);
        for (long i = 0; i < n; i++) {
            int32_t both;
            memcpy(&both, x + i * n_in + at, 4);
            __m512bh a = (__m512bh)_mm512_set1_epi32(both);
            low[i] = _mm512_dpbf16_ps(low[i], a, b_low);
            high[i] = _mm512_dpbf16_ps(high[i], a, b_high);
        }
    }
    for (long i = 0; i < n; i++) {
        _mm512_store_ps(pending->sums[0] + i * LANES, low[i]);
        _mm512_store_ps(pending->sums[1] + i * LANES, high[i]);
    }
}

static void multiply(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, long rows, long panel) {
    long n_in = linear->n_in, n_out = linear->n_out;
    const bf16 *packed = linear->packed + panel * COLUMNS * n_in;
    struct pending now;
    for (long row = 0; row < rows; row += now.rows) {
        now.other = other ? other + row * n_out : NULL;
        now.out = out + row * n_out * size_of_one(linear);
        now.column = panel * COLUMNS;
        now.next = 0;
        now.rows = least(MOST_ROWS, rows - row);
        switch (now.rows) {
#define ROWS_OF(n) case n: accumulate(n, x + row * n_in, packed, n_in, &now); break;
            ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6)
            ROWS_OF(7) ROWS_OF(8) ROWS_OF(9) ROWS_OF(10) ROWS_OF(11) ROWS_OF(12)
#undef ROWS_OF
        }
        finish(linear, &now, MOST_ROWS);
    }
}
#endif

/* out [rows, n_out] = x [rows, n_in] times the weight, plus bias, then the operation with `other` [rows, n_out]. */
void linear_rows(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, long rows) {
    long panels = round_up(linear->n_out, COLUMNS) / COLUMNS, blocks = round_up(rows, BLOCK) / BLOCK;
    tiles_on(LANES);
    if (rows <= FEW) {
        /* Reading the weight takes the time: each thread reads a part in one piece. */
#pragma omp for schedule(static)
        for (long panel = 0; panel < panels; panel++) multiply(linear, x, other, out, rows, panel);
    } else {
#pragma omp for schedule(dynamic, 3)
        for (long task = 0; task < blocks * panels; task++) {
            long row = task / panels * BLOCK;
            multiply(linear, x + row * linear->n_in, other ? other + row * linear->n_out : NULL,
                     out + row * linear->n_out * size_of_one(linear), least(BLOCK, rows - row), task % panels);
        }
    }
    tiles_off();
}

EXPORT void longturn_linear(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, int64_t rows,
                            int threads) {
#pragma omp parallel num_threads(threads)
    linear_rows(linear, x, other, out, rows);
}
