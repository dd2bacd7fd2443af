/* The products that attention of many rows consists of: c [..][QUERIES] (float) += a [..][DEPTH] times
 * b [DEPTH][QUERIES]. How a and b lie in memory differs with what multiplies them: tiles, or lanes of pairs of bfloat16
 * (b is [DEPTH / 2][QUERIES][2] then), or of floats.
 *
 * `score`: scores [n][QUERIES] of n keys for one tile of queries. `weigh`: sums [depth][QUERIES] += values of n keys
 * times shares. n is a multiple of DEPTH. `put_row` and `put_values` take keys and values to where these read them,
 * `put_pairs` pairs of each query's numbers, and `put_two` its shares of two keys. */
#pragma once

#include "attention.h"

enum { QUERIES = 16 }; /* of a tile: the lanes of one vector, or of two */

/* Rows of the keys and values that come next. A few are fetched with every product of tiles: if all were read when it is
 * their turn, that took up to a quarter of the time (few queries, measured), since those of one head lie too far apart
 * for the CPU to guess. */
struct coming { const bf16 *rows[2 * KEYS]; long n, next, at_a_time, dim; };

static inline __attribute__((always_inline)) void fetch(struct coming *coming) {
    for (long i = 0; i < coming->at_a_time && coming->next < coming->n; i++) {
        const bf16 *row = coming->rows[coming->next++];
        for (long at = 0; at < coming->dim; at += 32) _mm_prefetch((const char *)(row + at), _MM_HINT_T1);
    }
}

#ifdef SIXTEEN_LANES
typedef bf16 number;

#ifdef TILES
/* Keys in a product. */
enum { AT_ONCE = 2 * LANES };

/* Scores [n][16] of n keys [n][depth] for one tile of queries [depth / 2][16][2]; n is a multiple of 32. */
static void score(float *scores, const bf16 *keys, const bf16 *queries, long n, long depth, struct coming *coming) {
    written();
    for (long key = 0; key < n; key += 2 * LANES) {
        _tile_zero(0);
        _tile_zero(1);
        for (long at = 0; at < depth; at += DEPTH) {
            fetch(coming);
            _tile_loadd(6, queries + at * LANES, 64);
            _tile_loadd(2, keys + key * depth + at, depth * 2);
            _tile_dpbf16ps(0, 2, 6);
            _tile_loadd(3, keys + (key + LANES) * depth + at, depth * 2);
            _tile_dpbf16ps(1, 3, 6);
        }
        _tile_stored(0, scores + key * LANES, 64);
        _tile_stored(1, scores + (key + LANES) * LANES, 64);
    }
}

/* sums [depth][16] += values [n / 32][depth][32] times shares [n / 2][16][2]; n is a multiple of 32. */
static void weigh(float *sums, const bf16 *values, const bf16 *shares, long n, long depth, struct coming *coming) {
    written();
    for (long at = 0; at < depth; at += 2 * LANES) {
        float *c = sums + at * LANES;
        _tile_loadd(0, c, 64);
        _tile_loadd(1, c + LANES * LANES, 64);
        for (long key = 0; key < n; key += DEPTH) {
            const bf16 *a = values + key * depth + at * DEPTH;
            fetch(coming);
            _tile_loadd(6, shares + key * LANES, 64);
            _tile_loadd(2, a, 64);
            _tile_dpbf16ps(0, 2, 6);
            _tile_loadd(3, a + LANES * DEPTH, 64);
            _tile_dpbf16ps(1, 3, 6);
        }
        _tile_stored(0, c, 64);
        _tile_stored(1, c + LANES * LANES, 64);
    }
}
#else
enum { AT_ONCE = 8 };

/* c [8][16] += 8 rows of a, `stride` apart, times b. */
static inline __attribute__((always_inline)) void product(floats c[8], const bf16 *a, long stride, const bf16 *b,
                                                          struct coming *coming) {
    fetch(coming);
    for (int pair = 0; pair < DEPTH / 2; pair++) {
        __m512bh lanes = (__m512bh)words_at(b + pair * 2 * LANES);
        for (int i = 0; i < 8; i++) {
            int32_t both;
            memcpy(&both, a + i * stride + pair * 2, 4);
            c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)splat_word(both), lanes);
        }
    }
}

static void score(float *scores, const bf16 *keys, const bf16 *queries, long n, long depth, struct coming *coming) {
    for (long key = 0; key < n; key += 8) {
        floats c[8];
        for (int i = 0; i < 8; i++) c[i] = splat(0);
        for (long at = 0; at < depth; at += DEPTH)
            product(c, keys + key * depth + at, depth, queries + at * LANES, coming);
        for (int i = 0; i < 8; i++) store(scores + (key + i) * LANES, c[i]);
    }
}

static void weigh(float *sums, const bf16 *values, const bf16 *shares, long n, long depth, struct coming *coming) {
    for (long at = 0; at < depth; at += 8) {
        floats c[8];
        for (int i = 0; i < 8; i++) c[i] = load(sums + (at + i) * LANES);
        for (long key = 0; key < n; key += DEPTH)
            product(c, values + key * depth + at * DEPTH, DEPTH, shares + key * LANES, coming);
        for (int i = 0; i < 8; i++) store(sums + (at + i) * LANES, c[i]);
    }
}
#endif

static inline void put_row(number *to, words numbers) { store_words(to, numbers); }
static inline void put_pairs(number *to, words pairs) { store_words(to, pairs); }

static inline void put_two(number *to, floats first, floats second) {
    static const uint16_t PAIRED[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    store_words(to, _mm512_permutexvar_epi16(words_at(PAIRED), both_narrowed(first, second)));
}

/* Rows [n] of `dim` numbers to values [n / 32][depth][32]. */
static void put_values(number *values, const bf16 *const *rows, long n, const struct shape *shape, long depth) {
    for (long key = 0; key < n; key += DEPTH)
        for (long at = 0; at < depth; at += DEPTH) {
            words even[LANES], odd[LANES];
            pieces_of(even, rows + key, 2, 0, at, shape->dim);
            transpose(even);
            pieces_of(odd, rows + key + 1, 2, 0, at, shape->dim);
            transpose(odd);
            number *to = values + key * depth + at * DEPTH;
            for (long i = 0; i < LANES; i++, to += 2 * DEPTH) {
                store_words(to, _mm512_mask_mov_epi16(even[i], 0xaaaaaaaa, _mm512_slli_epi32(odd[i], 16)));
                store_words(to + DEPTH, _mm512_mask_mov_epi16(_mm512_srli_epi32(even[i], 16), 0xaaaaaaaa, odd[i]));
            }
        }
}
#else
typedef float number;
enum { AT_ONCE = 6 }; /* with two vectors of queries, as many sums as registers hold */

/* c [rows][2][LANES] += a times b, where `rows` is a constant to the compiler; from row to row of a are so many numbers,
 * and from column to column. */
static inline __attribute__((always_inline)) void product(long rows, floats c[AT_ONCE][2], const float *a, long row,
                                                          long column, const float *b, struct coming *coming) {
    fetch(coming);
    for (int at = 0; at < DEPTH; at++, a += column, b += QUERIES) {
        floats low = load(b), high = load(b + LANES);
        for (long i = 0; i < rows; i++) {
            floats both = splat(a[i * row]);
            c[i][0] = fused(both, low, c[i][0]), c[i][1] = fused(both, high, c[i][1]);
        }
    }
}

/* Rows of c [..][QUERIES] += columns of a, a multiple of DEPTH, times b. */
static inline __attribute__((always_inline)) void rows_of(long rows, float *to, const float *a, long row, long column,
                                                          const float *b, long columns, struct coming *coming) {
    floats c[AT_ONCE][2];
    for (long i = 0; i < rows; i++) c[i][0] = load(to + i * QUERIES), c[i][1] = load(to + i * QUERIES + LANES);
    for (long at = 0; at < columns; at += DEPTH)
        product(rows, c, a + at * column, row, column, b + at * QUERIES, coming);
    for (long i = 0; i < rows; i++) store(to + i * QUERIES, c[i][0]), store(to + i * QUERIES + LANES, c[i][1]);
}

static void multiply(float *to, const float *a, long row, long column, const float *b, long rows, long columns,
                     struct coming *coming) {
    long i = 0;
    for (; i + AT_ONCE <= rows; i += AT_ONCE)
        rows_of(AT_ONCE, to + i * QUERIES, a + i * row, row, column, b, columns, coming);
    for (; i + 4 <= rows; i += 4) rows_of(4, to + i * QUERIES, a + i * row, row, column, b, columns, coming);
    for (; i < rows; i += 2) rows_of(2, to + i * QUERIES, a + i * row, row, column, b, columns, coming);
}

static void score(float *scores, const float *keys, const float *queries, long n, long depth, struct coming *coming) {
    memset(scores, 0, n * QUERIES * sizeof(float));
    multiply(scores, keys, depth, 1, queries, n, depth, coming);
}

static void weigh(float *sums, const float *values, const float *shares, long n, long depth, struct coming *coming) {
    multiply(sums, values, 1, depth, shares, depth, n, coming);
}

static inline void put_two(number *to, floats first, floats second) { store(to, first), store(to + QUERIES, second); }
static inline void put_row(number *to, words numbers) {
    store(to, widened(lower(numbers)));
    store(to + LANES, widened(upper(numbers)));
}
static inline void put_pairs(number *to, words pairs) { put_two(to, firsts(pairs), seconds(pairs)); }

/* Rows [n] of `dim` numbers to values [n][depth]. */
static void put_values(number *values, const bf16 *const *rows, long n, const struct shape *shape, long depth) {
    for (long i = 0; i < n; i++)
        for (long at = 0; at < depth; at += DEPTH) put_row(values + i * depth + at, piece_of(rows[i], at, shape->dim));
}
#endif
