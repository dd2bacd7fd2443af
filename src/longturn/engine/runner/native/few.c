/* Attention of few rows: the token of an answer, one row for each head of a kv head.
 *
 * A tile of attention.c would be empty but for these. Here a vector holds one row's scores for LANES keys, and of values
 * as many numbers of a row. All is summed in the order of attention.c, so that the bits are those that the row would have
 * got there, as part of a prompt.
 */
#include "attention.h"

/* How the next keys come, see read_ahead. */
#if defined(TILES) || !defined(SIXTEEN_LANES)
#define FETCHES
#endif

/* ---- Sums of products of pairs of numbers, to the same bits as in attention.c. ---- */

#if defined(SIXTEEN_LANES) && !defined(TILES)
typedef bf16 factor;
struct pairs { __m512bh both; };
struct sums { floats all; };

static inline struct pairs pairs_of(words r) { return (struct pairs){(__m512bh)r}; }
static inline struct sums sums_after(floats before) { return (struct sums){before}; }

static inline void add_products(struct sums *sums, struct pairs pairs, const factor *of) {
    int32_t both;
    memcpy(&both, of, 4);
    sums->all = _mm512_dpbf16_ps(sums->all, pairs.both, (__m512bh)splat_word(both));
}

static inline floats with_sums(floats before, struct sums sums) {
    (void)before;
    return sums.all;
}

static inline void put_factors(factor *to, words numbers) { store_words(to, numbers); }
static inline void put_shares(factor *to, floats shares) { _mm256_store_si256((halves *)to, narrowed(shares)); }
#else
typedef float factor;
struct pairs { floats first, second; };

static inline struct pairs pairs_of(words r) { return (struct pairs){firsts(r), seconds(r)}; }

static inline void put_factors(factor *to, words numbers) {
    store(to, widened(lower(numbers)));
    store(to + LANES, widened(upper(numbers)));
}

#ifdef TILES
/* A tile adds up the products of the first numbers of DEPTH / 2 pairs and those of the second, each with one rounding,
 * and adds the sum of both to what was there (TDPBF16PS in Intel's manual). That it takes numbers below the smallest
 * normal one for 0 is left out: only sums about as small could feel it. */
struct sums { floats first, second; };

static inline struct sums sums_after(floats before) {
    (void)before;
    return (struct sums){splat(0), splat(0)};
}

static inline void add_products(struct sums *sums, struct pairs pairs, const factor *of) {
    sums->first = fused(pairs.first, splat(of[0]), sums->first);
    sums->second = fused(pairs.second, splat(of[1]), sums->second);
}

static inline floats with_sums(floats before, struct sums sums) { return before + (sums.first + sums.second); }
static inline void put_shares(factor *to, floats shares) { store(to, widened(narrowed(shares))); }
#else
struct sums { floats all; };

static inline struct sums sums_after(floats before) { return (struct sums){before}; }

static inline void add_products(struct sums *sums, struct pairs pairs, const factor *of) {
    sums->all = fused(pairs.first, splat(of[0]), sums->all);
    sums->all = fused(pairs.second, splat(of[1]), sums->all);
}

static inline floats with_sums(floats before, struct sums sums) {
    (void)before;
    return sums.all;
}

static inline void put_shares(factor *to, floats shares) { store(to, shares); }
#endif
#endif

/* ---- Blocks of keys. ---- */

/* What is kept of a kv head's rows from block to block. */
struct head {
    factor query[FEWEST_ROWS][256] __attribute__((aligned(64)));
    /* [dim / DEPTH][2][LANES]: of DEPTH numbers those that taking turns puts into the first vector, and the others. */
    float sums[FEWEST_ROWS][256] __attribute__((aligned(64)));
    float most[FEWEST_ROWS], total[FEWEST_ROWS];
};

/* Where the keys and values of a block lie. */
struct block { const bf16 *keys[KEYS], *values[KEYS]; };

/* What a head makes of a block. */
struct made {
    float scores[FEWEST_ROWS][KEYS] __attribute__((aligned(64)));
    factor shares[FEWEST_ROWS][KEYS] __attribute__((aligned(64)));
};

/* The number of rows is a constant to the compiler. */
#define EACH_NUMBER static inline __attribute__((always_inline)) void

/* Part of what is computed next comes while the CPU is busy; see read_ahead. Were it not always inlined, the compiler
 * would find that it does nothing. */
static inline __attribute__((always_inline)) void fetch(const struct block *coming, long row, long at) {
#ifdef FETCHES
    _mm_prefetch((const char *)(coming->keys[row] + at), _MM_HINT_T1);
    _mm_prefetch((const char *)(coming->values[row] + at), _MM_HINT_T1);
#else
    (void)coming, (void)row, (void)at;
#endif
}

/* `offset` numbers after the beginnings of a block's rows lie those of the head. */
EACH_NUMBER score(long rows, const struct head *head, struct made *made, const struct block *block,
                  const struct block *coming, long offset, long n, long dim) {
    for (long key = 0; key < n; key += LANES) {
        floats c[FEWEST_ROWS];
        for (long i = 0; i < rows; i++) c[i] = splat(0);
        for (long at = 0; at < dim; at += DEPTH) {
            words r[LANES];
            pieces_of(r, block->keys + key, 1, offset, at, dim);
            transpose(r);
            struct sums sums[FEWEST_ROWS];
            for (long i = 0; i < rows; i++) sums[i] = sums_after(c[i]);
            for (long pair = 0; pair < LANES; pair++) {
                struct pairs pairs = pairs_of(r[pair]);
                fetch(coming, key + pair, offset + at);
                for (long i = 0; i < rows; i++) add_products(&sums[i], pairs, head->query[i] + at + pair * 2);
            }
            for (long i = 0; i < rows; i++) c[i] = with_sums(c[i], sums[i]);
        }
        for (long i = 0; i < rows; i++) store(made->scores[i] + key, c[i]);
    }
}

/* Scores of one row to shares; what was summed before is scaled down where the greatest has grown. */
static void share_out(struct head *head, struct made *made, long row, long there, long n, float scale, long dim) {
    float *scores = made->scores[row];
    const floats log_scale = splat(scale * 1.4426950408889634f);
    for (long key = there / LANES * LANES; key < n; key += LANES)
        store(scores + key, first_of(load(scores + key), there > key ? there - key : 0, splat(-INFINITY)));
    floats greatest = load(scores);
    for (long key = LANES; key < n; key += LANES) greatest = greater_of(greatest, load(scores + key));
    floats before = splat(head->most[row]), most = greater_of(before, splat(greatest_in(greatest)));
    floats base = most * log_scale;
    __m128 total = _mm_setzero_ps();
    for (long key = 0; key < n; key += LANES) {
        floats share = power_of_two(fused(load(scores + key), log_scale, -base));
        total = added_by_four(total, share);
        put_shares(made->shares[row] + key, share);
    }
    float sum = (total[0] + total[1]) + (total[2] + total[3]);
    floats kept = power_of_two((before - most) * log_scale);
    float factor = first_in(kept);
    head->most[row] = first_in(most);
    head->total[row] = fmaf(head->total[row], factor, sum);
    if (factor != 1.0f)
        for (long at = 0; at < dim; at += LANES) store(head->sums[row] + at, load(head->sums[row] + at) * kept);
}

EACH_NUMBER weigh(long rows, struct head *head, const struct made *made, const struct block *block, long offset, long n,
                  long dim) {
    for (long at = 0; at < dim; at += DEPTH) {
        floats low[FEWEST_ROWS], high[FEWEST_ROWS];
        for (long i = 0; i < rows; i++) {
            low[i] = load(head->sums[i] + at);
            high[i] = load(head->sums[i] + at + LANES);
        }
        for (long group = 0; group < n; group += DEPTH) {
            struct sums lows[FEWEST_ROWS], highs[FEWEST_ROWS];
            for (long i = 0; i < rows; i++) lows[i] = sums_after(low[i]), highs[i] = sums_after(high[i]);
            for (long key = group; key < group + DEPTH; key += 2) {
                words even = piece_of(block->values[key] + offset, at, dim);
                words odd = piece_of(block->values[key + 1] + offset, at, dim);
                struct pairs first = pairs_of(turns_low(even, odd));
                struct pairs second = pairs_of(turns_high(even, odd));
                for (long i = 0; i < rows; i++) {
                    add_products(&lows[i], first, made->shares[i] + key);
                    add_products(&highs[i], second, made->shares[i] + key);
                }
            }
            for (long i = 0; i < rows; i++) low[i] = with_sums(low[i], lows[i]), high[i] = with_sums(high[i], highs[i]);
        }
        for (long i = 0; i < rows; i++) {
            store(head->sums[i] + at, low[i]);
            store(head->sums[i] + at + LANES, high[i]);
        }
    }
}

/* Have a row's keys or values come from memory. Without tiles, each line of them is read once, in their order: that has
 * the CPU fetch ahead, twice as fast as one head after the other or its instructions for fetching (measured, Zen 4).
 * With them (measured, Xeon with AMX), `fetch` is an eighth faster; with eight lanes (measured, Zen 4), up to a third. */
static inline void read_ahead(const bf16 *row, long width) {
#ifdef FETCHES
    (void)row, (void)width;
#else
    for (long at = 0; at < width; at += DEPTH) (void)*(const volatile bf16 *)(row + at);
#endif
}

/* The next n keys and values, filled up with zeros. */
static void take_block(struct block *block, struct reader *reader, long n, const bf16 *keys, const bf16 *values,
                       long stride) {
    static const bf16 nothing[MOST_HEADS * 256];
    for (long i = 0; i < KEYS; i++) {
        int64_t slot = i < n ? next_slot(reader) : 0;
        block->keys[i] = i < n ? keys + slot * stride : nothing;
        block->values[i] = i < n ? values + slot * stride : nothing;
    }
}

EACH_NUMBER attend(long rows, struct head *heads, long n_heads, const bf16 *keys, const bf16 *values,
                   struct reader reader, long n, const struct shape *shape) {
    struct made made;
    struct block blocks[2], *block = &blocks[0], *coming = &blocks[1];
    long dim = shape->dim;
    take_block(block, &reader, least(KEYS, n), keys, values, shape->kv_stride);
    for (long left = n; left > 0; left -= KEYS) {
        long there = least(KEYS, left), filled = round_up(there, DEPTH);
        take_block(coming, &reader, least(KEYS, left - there), keys, values, shape->kv_stride);
        for (long i = 0; i < there; i++) {
            read_ahead(block->keys[i], n_heads * dim);
            read_ahead(block->values[i], n_heads * dim);
        }
        for (long number = 0; number < n_heads; number++) {
            struct head *head = &heads[number];
            score(rows, head, &made, block, coming, number * dim, filled, dim);
            for (long i = 0; i < rows; i++) share_out(head, &made, i, there, filled, shape->scale, round_up(dim, DEPTH));
            weigh(rows, head, &made, block, number * dim, filled, dim);
        }
        struct block *done = block;
        block = coming, coming = done;
    }
}

void attend_few(long rows, long n_heads, const bf16 *query, bf16 *out, const bf16 *keys, const bf16 *values,
                struct reader reader, long n, const struct shape *shape) {
    struct head heads[MOST_HEADS];
    long dim = shape->dim;
    for (long row = 0; row < n_heads * rows; row++) {
        struct head *head = &heads[row / rows];
        long i = row % rows;
        head->most[i] = -INFINITY, head->total[i] = 0;
        for (long at = 0; at < dim; at += DEPTH) {
            put_factors(head->query[i] + at, piece_of(query + row * dim, at, dim));
            store(head->sums[i] + at, splat(0));
            store(head->sums[i] + at + LANES, splat(0));
        }
    }
    switch (rows) {
#define ROWS_OF(rows) case rows: attend(rows, heads, n_heads, keys, values, reader, n, shape); break;
        ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4)
#if defined(SIXTEEN_LANES) && !defined(TILES)
        ROWS_OF(5) ROWS_OF(6) ROWS_OF(7) ROWS_OF(8)
#endif
#undef ROWS_OF
    }
    for (long row = 0; row < n_heads * rows; row++)
        for (long at = 0; at < dim; at += DEPTH) {
            const struct head *head = &heads[row / rows];
            floats total = splat(head->total[row % rows]);
            floats low = load(head->sums[row % rows] + at) / total;
            floats high = load(head->sums[row % rows] + at + LANES) / total;
            put_some_words(out + row * dim + at, without_turns(low, high), dim - at);
        }
}
