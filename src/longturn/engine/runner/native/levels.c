/* Linears with weights of eight or four bits.
 *
 * Each group of 32 inputs of an output has a scale and a middle: a weight is (level - half) * scale + middle. Inputs are
 * rounded to eight bits, by groups of 32 as well and each row by itself, so that whole numbers are multiplied; llama.cpp
 * multiplies its Q8_0 and Q4_1 so. What a row gets does not depend on the rows beside it.
 */
#include "linear.h"

enum {
    GROUP = 32,
    QUAD = 4,
#ifdef SIXTEEN_LANES
    MOST_LEVEL_ROWS = 6, /* whose sums fit in the registers */
#else
    MOST_LEVEL_ROWS = 4,
#endif
};

static struct rounded divide(char *room, long rows, long n_in) {
    struct rounded rounded;
    rounded.scale = (float *)room, room += rows * (n_in / GROUP) * sizeof(float);
    rounded.sum = (float *)room, room += rows * (n_in / GROUP) * sizeof(float);
    rounded.levels = (int8_t *)room;
    return rounded;
}

long level_room(long n_in) { return n_in + n_in / GROUP * 2 * (long)sizeof(float); }

static void round_row(const bf16 *x, int8_t *levels, float *scale, float *sum, long n_in) {
    enum { PARTS = GROUP / LANES };
    for (long group = 0; group < n_in / GROUP; group++, x += GROUP, levels += GROUP) {
        floats part[PARTS], greatest = splat(0), all = splat(0);
        for (long i = 0; i < PARTS; i++) {
            part[i] = widened(some_halves(x + i * LANES, LANES));
            greatest = greater_of(greatest, magnitude(part[i]));
            all = all + part[i];
        }
        float most = greatest_in(greatest);
        floats factor = splat(most > 0 ? 127.0f / most : 0.0f);
        int32_t total = 0;
        for (long i = 0; i < PARTS; i++) {
            words nearest = rounded_to_words(part[i] * factor);
            put_bytes(levels + i * LANES, nearest);
            total += sum_of_words(nearest);
        }
        /* Not a number, or not finite: so is all that comes of it. */
        scale[group] = most * (1.0f / 127.0f) + 0.0f * sum_in(all);
        sum[group] = scale[group] * (float)total;
    }
}

struct rounded round_rows(const bf16 *x, long rows, long n_in, char *room) {
    struct rounded all = divide(room, rows, n_in);
    long groups = n_in / GROUP;
#pragma omp for schedule(static)
    for (long i = 0; i < rows; i++)
        round_row(x + i * n_in, all.levels + i * n_in, all.scale + i * groups, all.sum + i * groups, n_in);
    return all;
}

/* Sums of products of four levels of a weight, in each word of b, and four of a row; n and bits are constants to the
 * compiler. `half` is what the levels of a weight have been raised by. */
#ifdef SIXTEEN_LANES
static inline float half_of(long bits) { return bits == 8 ? 128.0f : 8.0f; }
static inline words quads_of(const uint8_t *b, long bits) {
    (void)bits;
    return load_words(b);
}
static inline words add_quads(words sum, words b, words row, long bits) {
    (void)bits;
    return _mm512_dpbusd_epi32(sum, b, row);
}
static inline words whole(words sum, long bits) {
    (void)bits;
    return sum;
}
#else
/* Products of bytes are added up by twos in 16 bits. Those of eight bits fit if both factors have signs, and are summed
 * in words at once; those of four bits fit until a group is at its end. */
static inline float half_of(long bits) { return bits == 8 ? 0.0f : 8.0f; }
static inline words quads_of(const uint8_t *b, long bits) {
    words levels = load_words(b);
    return bits == 8 ? _mm256_xor_si256(levels, _mm256_set1_epi8((char)0x80)) : levels;
}
static inline words by_fours(words twos) { return _mm256_madd_epi16(twos, _mm256_set1_epi16(1)); }
static inline words add_quads(words sum, words b, words row, long bits) {
    if (bits == 4) return _mm256_add_epi16(sum, _mm256_maddubs_epi16(b, row));
    return _mm256_add_epi32(sum, by_fours(_mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(row, b))));
}
static inline words whole(words sum, long bits) { return bits == 4 ? by_fours(sum) : sum; }
#endif

/* Sums of n rows times one panel. */
static inline __attribute__((always_inline)) void accumulate(long n, long bits, const struct rounded *x, long row,
                                                             const uint8_t *b, const bf16 *scales, long n_in,
                                                             struct pending *pending) {
    const words nibble = splat_word(0x0f0f0f0f);
    const floats half = splat(half_of(bits));
    long groups = n_in / GROUP;
    floats low[MOST_LEVEL_ROWS], high[MOST_LEVEL_ROWS];
    for (long i = 0; i < n; i++) low[i] = high[i] = splat(0);
    for (long group = 0; group < groups; group++, scales += 2 * COLUMNS) {
        words whole_low[MOST_LEVEL_ROWS], whole_high[MOST_LEVEL_ROWS];
        for (long i = 0; i < n; i++) whole_low[i] = whole_high[i] = splat_word(0);
        words of_low = nibble, of_high = nibble;
        for (long quad = 0; quad < GROUP / QUAD; quad++) {
            words b_low, b_high;
            if (bits == 4 && quad % 2) {
                b_low = only(shifted_right(of_low, 4), nibble), b_high = only(shifted_right(of_high, 4), nibble);
            } else {
                of_low = quads_of(b, bits), of_high = quads_of(b + LANES * QUAD, bits);
                fetch_weight(b);
                b += COLUMNS * QUAD;
                b_low = bits == 4 ? only(of_low, nibble) : of_low;
                b_high = bits == 4 ? only(of_high, nibble) : of_high;
            }
            for (long i = 0; i < n; i++) {
                int32_t four;
                memcpy(&four, x->levels + (row + i) * n_in + group * GROUP + quad * QUAD, 4);
                words a = splat_word(four);
                whole_low[i] = add_quads(whole_low[i], b_low, a, bits);
                whole_high[i] = add_quads(whole_high[i], b_high, a, bits);
            }
        }
        floats scale_low = widened(some_halves(scales, LANES)), scale_high = widened(some_halves(scales + LANES, LANES));
        floats zero_low = widened(some_halves(scales + COLUMNS, LANES));
        floats zero_high = widened(some_halves(scales + COLUMNS + LANES, LANES));
        zero_low = fused(-half, scale_low, zero_low);
        zero_high = fused(-half, scale_high, zero_high);
        for (long i = 0; i < n; i++) {
            floats scale = splat(x->scale[(row + i) * groups + group]), sum = splat(x->sum[(row + i) * groups + group]);
            low[i] = fused(converted(whole(whole_low[i], bits)), scale_low * scale, low[i]);
            high[i] = fused(converted(whole(whole_high[i], bits)), scale_high * scale, high[i]);
            low[i] = fused(zero_low, sum, low[i]);
            high[i] = fused(zero_high, sum, high[i]);
        }
    }
    for (long i = 0; i < n; i++) {
        store(pending->sums[0] + i * LANES, low[i]);
        store(pending->sums[1] + i * LANES, high[i]);
    }
}

void multiply_levels(const struct linear *linear, const struct rounded *x, const bf16 *other, bf16 *out, long first,
                     long rows, long panel) {
    long n_in = linear->n_in;
    const uint8_t *levels = linear->levels + panel * COLUMNS * n_in * linear->bits / 8;
    const bf16 *scales = linear->scales + panel * (n_in / GROUP) * 2 * COLUMNS;
    struct pending now;
    for (long row = first; row < first + rows; row += now.rows) {
        begin(&now, linear, other, out, row, even_part(first + rows - row, MOST_LEVEL_ROWS), panel);
        switch (linear->bits * 8 + now.rows) {
#define ROWS_OF(bits, n) case bits * 8 + n: accumulate(n, bits, x, row, levels, scales, n_in, &now); break;
            ROWS_OF(8, 1) ROWS_OF(8, 2) ROWS_OF(8, 3) ROWS_OF(8, 4) ROWS_OF(4, 1) ROWS_OF(4, 2) ROWS_OF(4, 3) ROWS_OF(4, 4)
#ifdef SIXTEEN_LANES
            ROWS_OF(8, 5) ROWS_OF(8, 6) ROWS_OF(4, 5) ROWS_OF(4, 6)
#endif
#undef ROWS_OF
        }
        finish(linear, &now, MOST_LEVEL_ROWS);
    }
}
