/* The vectors that the kernels compute with, of 16 numbers of 32 bits with AVX-512 and of 8 with AVX2, in one vocabulary
 * for both: but for the innermost products, a kernel is written once. */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__)
#define SIXTEEN_LANES
#ifdef __AMX_BF16__
#define TILES
#endif
enum { LANES = 16 };
typedef __m512 floats;  /* LANES numbers */
typedef __m512i words;  /* as many whole numbers, or pairs of bfloat16 */
typedef __m256i halves; /* as many bfloat16 */
#else
enum { LANES = 8 };
typedef __m256 floats;
typedef __m256i words;
typedef __m128i halves;
#endif

enum { DEPTH = 2 * LANES }; /* bfloat16 numbers of a vector, or that a tile product sums over */

#ifdef SIXTEEN_LANES
#include "sixteen_lanes.h"
#else
#include "eight_lanes.h"
#endif

/* The first and the second numbers of pairs. */
static inline floats firsts(words pairs) { return as_floats(shifted_left(pairs, 16)); }
static inline floats seconds(words pairs) { return as_floats(only(pairs, splat_word((int32_t)0xffff0000))); }

/* DEPTH bfloat16 numbers from `at` on of a row of `width`, zeros beyond its end. */
static inline words piece_of(const bf16 *row, long at, long width) {
    if (at + DEPTH <= width) return words_at(row + at);
    long n = width - at;
    return some_words(row + at, n > 0 ? n : 0);
}

/* So from every second of 2 * LANES rows, or from each of LANES, `offset` numbers after their beginnings. */
static inline void pieces_of(words r[LANES], const bf16 *const *rows, long every, long offset, long at, long width) {
    if (at + DEPTH <= width)
        for (long i = 0; i < LANES; i++) r[i] = words_at(rows[i * every] + offset + at);
    else
        for (long i = 0; i < LANES; i++) r[i] = piece_of(rows[i * every] + offset, at, width);
}

/* 2 to the x, for x <= 0, to 3e-6 of it (bfloat16 keeps 4e-3); 0 below the smallest normal number. */
static inline floats power_of_two(floats x) {
    /* Adding this leaves the nearest whole number in the last bits. */
    const floats rounder = splat(12582912.0f);
    floats rounded = x + rounder, part = x - (rounded - rounder);
    floats y = splat(9.5828529e-3f);
    y = fused(y, part, splat(5.5906425e-2f));
    y = fused(y, part, splat(2.4024099e-1f));
    y = fused(y, part, splat(6.9312419e-1f));
    y = fused(y, part, splat(1.0f));
    return times_power(y, rounded, x, -126.0f);
}
