/* Linears whose rows do not feel each other. */
#include "linear.h"

/* 1 if this CPU and system can run what was compiled here. */
EXPORT int longturn_ready(void) { return tiles_allowed(); }

/* Outputs of a panel. */
EXPORT int longturn_columns(void) { return COLUMNS; }

/* 1 if many rows are faster in bfloat16, on tiles, than with weights of few bits. */
EXPORT int longturn_tiles(void) {
#ifdef TILES
    return 1;
#else
    return 0;
#endif
}

enum {
    BLOCK = 256,       /* rows that a thread takes at a time, about */
    LEAST_BLOCK = 128, /* and least, if threads are to have rows of their own */
#ifdef SIXTEEN_LANES
    MOST_ROWS = 12, /* whose sums fit in the registers of a CPU without tiles */
#else
    MOST_ROWS = 6,
#endif
    SOON = 4 * DEPTH * LANES, /* numbers of a weight that are fetched ahead */
};

/* weight [n_out, n_in] to panels [n_out / COLUMNS][n_in / 2 pairs][COLUMNS][2], zeros beyond the last output, so that a
 * panel is read from its beginning to its end: nothing else comes from memory as fast. n_in is a multiple of 32. */
EXPORT void longturn_pack(const bf16 *weight, bf16 *packed, int64_t n_out, int64_t n_in, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long tile = 0; tile < round_up(n_out, COLUMNS) / LANES; tile++)
        for (long at = 0; at < n_in; at += DEPTH) {
            words r[LANES];
            for (long i = 0; i < LANES; i++) {
                long row = tile * LANES + i;
                r[i] = row < n_out ? words_at(weight + row * n_in + at) : splat_word(0);
            }
            transpose(r);
            bf16 *to = packed + (tile / 2 * n_in + at) * COLUMNS + tile % 2 * 2 * LANES;
            for (long i = 0; i < LANES; i++) store_words(to + i * 2 * COLUMNS, r[i]);
        }
}

/* The inputs as products read them: as they are, or where those are of floats, widened for all panels at once into a
 * room. For all threads of a parallel region; ends when all are done. */
#ifdef SIXTEEN_LANES
typedef bf16 input;
static const input *inputs_of(const bf16 *x, long rows, long n_in, char *room) {
    (void)rows, (void)n_in, (void)room;
    return x;
}
static long input_room(long n_in) {
    (void)n_in;
    return 0;
}
#else
typedef float input;
static const input *inputs_of(const bf16 *x, long rows, long n_in, char *room) {
    float *wide = (float *)room;
#pragma omp for schedule(static)
    for (long row = 0; row < rows; row++)
        for (long at = row * n_in; at < (row + 1) * n_in; at += LANES)
            put_some_floats(wide + at, widened(some_halves(x + at, LANES)), LANES);
    return wide;
}
static long input_room(long n_in) { return n_in * sizeof(float); }
#endif

/* Rows of x times one panel: sums are added up in the order of inputs, whatever the number of rows. */
#ifdef TILES
/* While the tiles are busy with some rows, those before are finished. Rows of x come from the second-level cache without
 * leaving the first-level one to them, which has room for a panel: 512 rows take 0.9 of the time (measured). */
static void multiply(const struct linear *linear, const input *x, const bf16 *other, bf16 *out, long rows, long panel) {
    long n_in = linear->n_in, stride = n_in * sizeof(bf16);
    long at_a_time = round_up(2 * LANES * DEPTH, n_in) / n_in;
    const bf16 *packed = linear->packed + panel * COLUMNS * n_in;
    struct pending all[2];
    struct pending *now = &all[0], *before = &all[1];
    before->next = before->rows = 0;
    /* With more than few rows the tiles are busy long enough for the panel after this one to come meanwhile. */
    long share = rows <= FEW ? 0 : round_up(DEPTH * FEW, rows) / rows;
    const char *coming = (const char *)(packed + COLUMNS * n_in);
    for (long row = 0; row < rows; row += now->rows, now = before, before = now == all ? all + 1 : all) {
        long n = least(2 * LANES, rows - row);
        if (n < 2 * LANES) n = least(LANES, n);
        const bf16 *above = x + row * n_in, *below = above + LANES * n_in, *b = packed;
        begin(now, linear, other, out, row, n, panel);
        if (n < LANES) tiles_on(n);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long at = 0; at < n_in; at += DEPTH, b += DEPTH * COLUMNS) {
            /* Later rows find the panel in the second-level cache. */
            for (long i = 0; row == 0 && i < DEPTH * COLUMNS; i += 32) __builtin_prefetch(b + SOON + i);
            for (long i = 0; i < share; i++, coming += 64) _mm_prefetch(coming, _MM_HINT_T1);
            _tile_stream_loadd(4, above + at, stride);
            _tile_loadd(6, b, 2 * COLUMNS * sizeof(bf16));
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + COLUMNS, 2 * COLUMNS * sizeof(bf16));
            _tile_dpbf16ps(1, 4, 7);
            if (n > LANES) {
                _tile_stream_loadd(5, below + at, stride);
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
static inline __attribute__((always_inline)) void accumulate(long n, const input *x, const bf16 *b, long n_in,
                                                             struct pending *pending) {
    floats low[MOST_ROWS], high[MOST_ROWS];
    for (long i = 0; i < n; i++) low[i] = high[i] = splat(0);
    for (long at = 0; at < n_in; at += 2, b += 2 * COLUMNS) {
#ifdef SIXTEEN_LANES
        __m512bh b_low = (__m512bh)load_words(b), b_high = (__m512bh)load_words(b + COLUMNS);
        for (long i = 0; i < n; i++) {
            int32_t both;
            memcpy(&both, x + i * n_in + at, 4);
            __m512bh a = (__m512bh)splat_word(both);
            low[i] = _mm512_dpbf16_ps(low[i], a, b_low);
            high[i] = _mm512_dpbf16_ps(high[i], a, b_high);
        }
#else
        fetch_weight(b);
        words pairs_low = load_words(b), pairs_high = load_words(b + COLUMNS);
        floats b_low = firsts(pairs_low), b_high = firsts(pairs_high);
        for (long i = 0; i < n; i++) {
            floats a = splat(x[i * n_in + at]);
            low[i] = fused(a, b_low, low[i]), high[i] = fused(a, b_high, high[i]);
        }
        b_low = seconds(pairs_low), b_high = seconds(pairs_high);
        for (long i = 0; i < n; i++) {
            floats a = splat(x[i * n_in + at + 1]);
            low[i] = fused(a, b_low, low[i]), high[i] = fused(a, b_high, high[i]);
        }
#endif
    }
    for (long i = 0; i < n; i++) {
        store(pending->sums[0] + i * LANES, low[i]);
        store(pending->sums[1] + i * LANES, high[i]);
    }
}

static void multiply(const struct linear *linear, const input *x, const bf16 *other, bf16 *out, long rows, long panel) {
    long n_in = linear->n_in;
    const bf16 *packed = linear->packed + panel * COLUMNS * n_in;
    struct pending now;
    for (long row = 0; row < rows; row += now.rows) {
        begin(&now, linear, other, out, row, even_part(rows - row, MOST_ROWS), panel);
        switch (now.rows) {
#define ROWS_OF(n) case n: accumulate(n, x + row * n_in, packed, n_in, &now); break;
            ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6)
#ifdef SIXTEEN_LANES
            ROWS_OF(7) ROWS_OF(8) ROWS_OF(9) ROWS_OF(10) ROWS_OF(11) ROWS_OF(12)
#endif
#undef ROWS_OF
        }
        finish(linear, &now, MOST_ROWS);
    }
}
#endif

/* Rows first .. first + rows times one panel, of whichever weights there are. */
static void some_rows(const struct linear *linear, const input *x, const struct rounded *rounded, const bf16 *other,
                      bf16 *out, long first, long rows, long panel) {
    long at = first * linear->n_out;
    if (rounded)
        multiply_levels(linear, rounded, other, out, first, rows, panel);
    else
        multiply(linear, x + first * linear->n_in, other ? other + at : NULL, out + at * size_of_one(linear), rows, panel);
}

/* Blocks of rows: of about BLOCK at most, and as many to each thread as long as that leaves them long enough for the
 * weight, which every thread reads then. */
static long blocks_of(long rows, long threads) {
    long blocks = round_up(rows, BLOCK) / BLOCK, even = round_up(blocks, threads);
    return rows >= even * LEAST_BLOCK ? even : blocks;
}

/* The multiple of FEW that is nearest to an even share: of 511 rows each of two threads gets 256 or 255. */
static long start_of(long block, long blocks, long rows) {
    return block == blocks ? rows : (rows * block / blocks + FEW / 2) / FEW * FEW;
}

/* out [rows, n_out] = x [rows, n_in] times the weight, plus bias, then the operation, to ADD `other` [rows, n_out]; room:
 * for the inputs as they are multiplied. */
void linear_rows(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, long rows, char *room) {
    long panels = round_up(linear->n_out, results_of(linear)) / results_of(linear);
    struct rounded all;
    const struct rounded *rounded = NULL;
    const input *inputs = NULL;
    if (linear->levels && (rows <= FEW || !linear->packed)) {
        all = round_rows(x, rows, linear->n_in, room);
        rounded = &all;
    } else
        inputs = inputs_of(x, rows, linear->n_in, room);
    tiles_on(LANES);
    long blocks = blocks_of(rows, omp_get_num_threads());
#pragma omp for schedule(static)
    for (long task = 0; task < blocks * panels; task++) {
        long block = task / panels, row = start_of(block, blocks, rows), end = start_of(block + 1, blocks, rows);
        some_rows(linear, inputs, rounded, other, out, row, end - row, task % panels);
    }
    tiles_off();
}

/* Bytes of room per row. */
EXPORT int64_t longturn_linear_room(const struct linear *linear) {
    return linear->levels ? level_room(linear->n_in) : input_room(linear->n_in);
}

EXPORT void longturn_linear(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, int64_t rows,
                            char *room, int threads) {
#pragma omp parallel num_threads(threads)
    linear_rows(linear, x, other, out, rows, room);
}
