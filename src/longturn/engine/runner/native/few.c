/* Attention of few rows: the token of an answer, one row for each head of a kv head.
 *
 * A tile of attention.c would be empty but for these. Here a vector holds one row's scores for 16 keys, and of values 16
 * numbers of a row. All is summed in the order of attention.c, so that the bits are those that the row would have got
 * there, as part of a prompt.
 */
#include "attention.h"

/* ---- Sums of products of pairs of numbers, to the same bits as in attention.c. ---- */

#ifdef __AMX_BF16__
/* A tile adds up the products of the first numbers of DEPTH / 2 pairs and those of the second, each with one rounding,
 * and adds the sum of both to what was there (TDPBF16PS in Intel's manual). That it takes numbers below the smallest
 * normal one for 0 is left out: only sums about as small could feel it. */
typedef float factor;
struct pairs { __m512 first, second; };
struct sums { __m512 first, second; };

static inline struct pairs pairs_of(__m512i r) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    return (struct pairs){_mm512_castsi512_ps(_mm512_slli_epi32(r, 16)), _mm512_castsi512_ps(_mm512_and_si512(r, upper))};
}

static inline struct sums sums_after(__m512 before) {
    (void)before;
    return (struct sums){_mm512_setzero_ps(), _mm512_setzero_ps()};
}

static inline void add_products(struct sums *sums, struct pairs pairs, const factor *of) {
    sums->first = _mm512_fmadd_ps(pairs.first, _mm512_set1_ps(of[0]), sums->first);
    sums->second = _mm512_fmadd_ps(pairs.second, _mm512_set1_ps(of[1]), sums->second);
}

static inline __m512 with_sums(__m512 before, struct sums sums) {
    return _mm512_add_ps(before, _mm512_add_ps(sums.first, sums.second));
}

static inline void put_factors(factor *to, __m512i numbers) {
    _mm512_store_ps(to, widened(_mm512_castsi512_si256(numbers)));
    _mm512_store_ps(to + LANES, widened(_mm512_extracti64x4_epi64(numbers, 1)));
}

static inline void put_half(factor *to, __m256bh numbers) { _mm512_store_ps(to, widened((__m256i)numbers)); }
#else
typedef bf16 factor;
struct pairs { __m512bh both; };
struct sums { __m512 all; };

static inline struct pairs pairs_of(__m512i r) { return (struct pairs){(__m512bh)r}; }
static inline struct sums sums_after(__m512 before) { return (struct sums){before}; }

static inline void add_products(struct sums *sums, struct pairs pairs, const factor *of) {
    int32_t both;
    memcpy(&both, of, 4);
    sums->all = _mm512_dpbf16_ps(sums->all, pairs.both, (__m512bh)_mm512_set1_epi32(both));
}

static inline __m512 with_sums(__m512 before, struct sums sums) {
    (void)before;
    return sums.all;
}

static inline void put_factors(factor *to, __m512i numbers) { _mm512_store_si512(to, numbers); }
static inline void put_half(factor *to, __m256bh numbers) { _mm256_store_si256((__m256i *)to, (__m256i)numbers); }
#endif

/* ---- Blocks of keys. ---- */

/* What is kept of a kv head's rows from block to block. */
struct head {
    factor query[FEWEST_ROWS][256] __attribute__((aligned(64)));
    /* [dim / 32][2][16]: of 32 numbers those that interleaving puts into the first vector, and the others. */
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
#ifdef __AMX_BF16__
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
        __m512 c[FEWEST_ROWS];
        for (long i = 0; i < rows; i++) c[i] = _mm512_setzero_ps();
        for (long at = 0; at < dim; at += DEPTH) {
            __m512i r[LANES];
            for (long i = 0; i < LANES; i++) r[i] = piece_of(block->keys[key + i] + offset, at, dim);
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
        for (long i = 0; i < rows; i++) _mm512_store_ps(made->scores[i] + key, c[i]);
    }
}

/* Scores of one row to shares; what was summed before is scaled down where the greatest has grown. */
static void share_out(struct head *head, struct made *made, long row, long there, long n, float scale, long dim) {
    float *scores = made->scores[row];
    const __m512 log_scale = _mm512_set1_ps(scale * 1.4426950408889634f);
    for (long key = there / LANES * LANES; key < n; key += LANES) {
        __mmask16 seen = there > key ? first_lanes(there - key) : 0;
        _mm512_store_ps(scores + key, _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), seen, scores + key));
    }
    __m512 greatest = _mm512_load_ps(scores);
    for (long key = LANES; key < n; key += LANES) greatest = _mm512_max_ps(greatest, _mm512_load_ps(scores + key));
    __m512 before = _mm512_set1_ps(head->most[row]);
    __m512 most = _mm512_max_ps(before, _mm512_set1_ps(_mm512_reduce_max_ps(greatest)));
    __m512 base = _mm512_mul_ps(most, log_scale);
    /* One sum for every fourth key. */
    __m128 total = _mm_setzero_ps();
    for (long key = 0; key < n; key += LANES) {
        __m512 share = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + key), log_scale, base));
        total = _mm_add_ps(total, _mm512_castps512_ps128(share));
        total = _mm_add_ps(total, _mm512_extractf32x4_ps(share, 1));
        total = _mm_add_ps(total, _mm512_extractf32x4_ps(share, 2));
        total = _mm_add_ps(total, _mm512_extractf32x4_ps(share, 3));
        put_half(made->shares[row] + key, _mm512_cvtneps_pbh(share));
    }
    float sum = (total[0] + total[1]) + (total[2] + total[3]);
    __m512 kept = power_of_two(_mm512_mul_ps(_mm512_sub_ps(before, most), log_scale));
    float factor = _mm512_cvtss_f32(kept);
    head->most[row] = _mm512_cvtss_f32(most);
    head->total[row] = fmaf(head->total[row], factor, sum);
    if (factor != 1.0f)
        for (long at = 0; at < dim; at += LANES)
            _mm512_store_ps(head->sums[row] + at, _mm512_mul_ps(_mm512_load_ps(head->sums[row] + at), kept));
}

EACH_NUMBER weigh(long rows, struct head *head, const struct made *made, const struct block *block, long offset, long n,
                  long dim) {
    for (long at = 0; at < dim; at += DEPTH) {
        __m512 low[FEWEST_ROWS], high[FEWEST_ROWS];
        for (long i = 0; i < rows; i++) {
            low[i] = _mm512_load_ps(head->sums[i] + at);
            high[i] = _mm512_load_ps(head->sums[i] + at + LANES);
        }
        for (long group = 0; group < n; group += DEPTH) {
            struct sums lows[FEWEST_ROWS], highs[FEWEST_ROWS];
            for (long i = 0; i < rows; i++) lows[i] = sums_after(low[i]), highs[i] = sums_after(high[i]);
            for (long key = group; key < group + DEPTH; key += 2) {
                __m512i even = piece_of(block->values[key] + offset, at, dim);
                __m512i odd = piece_of(block->values[key + 1] + offset, at, dim);
                struct pairs first = pairs_of(_mm512_unpacklo_epi16(even, odd));
                struct pairs second = pairs_of(_mm512_unpackhi_epi16(even, odd));
                for (long i = 0; i < rows; i++) {
                    add_products(&lows[i], first, made->shares[i] + key);
                    add_products(&highs[i], second, made->shares[i] + key);
                }
            }
            for (long i = 0; i < rows; i++) low[i] = with_sums(low[i], lows[i]), high[i] = with_sums(high[i], highs[i]);
        }
        for (long i = 0; i < rows; i++) {
            _mm512_store_ps(head->sums[i] + at, low[i]);
            _mm512_store_ps(head->sums[i] + at + LANES, high[i]);
        }
    }
}

/* Have a row's keys or values come from memory. Without tiles, each line of them is read once, in their order: that has
 * the CPU fetch ahead, twice as fast as one head after the other or its instructions for fetching (measured, Zen 4).
 * With them (measured, Xeon with AMX), `fetch` is an eighth faster. */
static inline void read_ahead(const bf16 *row, long width) {
#ifdef __AMX_BF16__
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
    /* Of 32 numbers the first 16, and the others, as they lie in two vectors of sums. */
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    struct head heads[MOST_HEADS];
    long dim = shape->dim;
    for (long row = 0; row < n_heads * rows; row++) {
        struct head *head = &heads[row / rows];
        long i = row % rows;
        head->most[i] = -INFINITY, head->total[i] = 0;
        for (long at = 0; at < dim; at += DEPTH) {
            put_factors(head->query[i] + at, piece_of(query + row * dim, at, dim));
            _mm512_store_ps(head->sums[i] + at, _mm512_setzero_ps());
            _mm512_store_ps(head->sums[i] + at + LANES, _mm512_setzero_ps());
        }
    }
    switch (rows) {
#define ROWS_OF(rows) case rows: attend(rows, heads, n_heads, keys, values, reader, n, shape); break;
        ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4)
#ifndef __AMX_BF16__
        ROWS_OF(5) ROWS_OF(6) ROWS_OF(7) ROWS_OF(8)
#endif
#undef ROWS_OF
    }
    for (long row = 0; row < n_heads * rows; row++)
        for (long at = 0; at < dim; at += DEPTH) {
            const struct head *head = &heads[row / rows];
            __m512 total = _mm512_set1_ps(head->total[row % rows]);
            __m512 low = _mm512_div_ps(_mm512_load_ps(head->sums[row % rows] + at), total);
            __m512 high = _mm512_div_ps(_mm512_load_ps(head->sums[row % rows] + at + LANES), total);
            __m512 a = _mm512_permutex2var_ps(low, first, high), b = _mm512_permutex2var_ps(low, second, high);
            __mmask32 there = dim - at >= DEPTH ? ~0u : (1u << (dim - at)) - 1;
            _mm512_mask_storeu_epi16(out + row * dim + at, there, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
}
