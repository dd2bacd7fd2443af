/* Linears whose rows do not feel each other, on tiles. */
#include "tiles.h"

/* 1 if this CPU and system can run what was compiled here. */
EXPORT int longturn_ready(void) { return tiles_allowed(); }

#ifdef __AMX_BF16__
enum {
    COLUMNS = 2 * LANES, /* outputs computed together: a panel */
    BLOCK = 256,         /* rows that a thread takes at a time */
    SOON = 4 * DEPTH * LANES, /* numbers of a weight that are fetched ahead where rows are too few to hide the wait */
};
enum operation { NONE, SWISH, ADD, MULTIPLY };

EXPORT int longturn_linears(void) { return 1; }

/* weight [n_out, n_in] to panels [n_out / 32][n_in / 32][2][16 pairs][16][2], zeros beyond the last output; n_in is a
 * multiple of 32. */
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
            bf16 *to = packed + (tile / 2 * 2 * n_in + at * 2 + tile % 2 * DEPTH) * LANES;
            for (long i = 0; i < LANES; i++) _mm512_store_si512(to + i * 2 * LANES, r[i]);
        }
}

static inline __m512 applied(enum operation operation, __m512 y, __m512 other) {
    if (operation == ADD) return _mm512_add_ps(y, other);
    if (operation == MULTIPLY) return _mm512_mul_ps(y, other);
    if (operation == NONE) return y;
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
        _mm512_mask_storeu_epi16(pending->out + at, (__mmask32)high << 16 | low, (__m512i)_mm512_cvtne2ps_pbh(z, y));
    }
}

/* Rows of x times one panel. Sums are added up in the order of inputs, whatever the number of rows; while the tiles
 * are busy with some rows, those before are finished. */
static void multiply(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, long rows, long panel) {
    long n_in = linear->n_in, n_out = linear->n_out, stride = n_in * sizeof(bf16);
    long at_a_time = round_up(2 * LANES * DEPTH, n_in) / n_in;
    const bf16 *packed = linear->packed + panel * COLUMNS * n_in;
    struct pending all[2];
    struct pending *now = &all[0], *before = &all[1];
    before->next = before->rows = 0;
    int few = rows <= 2 * LANES;
    for (long row = 0; row < rows; row += now->rows, now = before, before = now == all ? all + 1 : all) {
        long n = least(2 * LANES, rows - row);
        if (n < 2 * LANES) n = least(LANES, n);
        const bf16 *above = x + row * n_in, *below = above + LANES * n_in, *b = packed;
        now->other = other ? other + row * n_out : NULL;
        now->out = out + row * n_out;
        now->column = panel * COLUMNS;
        now->next = 0;
        now->rows = n;
        for (long i = 0; i < n; i++) __builtin_prefetch(now->out + i * n_out + now->column, 1);
        if (n < LANES) tiles_on(n);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long at = 0; at < n_in; at += DEPTH, b += 2 * DEPTH * LANES) {
            for (long i = 0; few && i < 2 * DEPTH * LANES; i += 32) __builtin_prefetch(b + SOON + i);
            _tile_loadd(4, above + at, stride);
            _tile_loadd(6, b, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + DEPTH * LANES, 64);
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

/* out [rows, n_out] = x [rows, n_in] times the weight, plus bias, then the operation with `other` [rows, n_out]. */
void linear_rows(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, long rows) {
    long panels = round_up(linear->n_out, COLUMNS) / COLUMNS, blocks = round_up(rows, BLOCK) / BLOCK;
    tiles_on(LANES);
#pragma omp for schedule(dynamic, 3)
    for (long task = 0; task < blocks * panels; task++) {
        long row = task / panels * BLOCK;
        multiply(linear, x + row * linear->n_in, other ? other + row * linear->n_out : NULL,
                 out + row * linear->n_out, least(BLOCK, rows - row), task % panels);
    }
    tiles_off();
}

EXPORT void longturn_linear(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, int64_t rows,
                            int threads) {
#pragma omp parallel num_threads(threads)
    linear_rows(linear, x, other, out, rows);
}
#else
/* Without tiles oneDNN's linears are as good. */
EXPORT int longturn_linears(void) { return 0; }
#endif
