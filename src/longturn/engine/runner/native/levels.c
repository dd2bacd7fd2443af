/* Linears with weights of eight or four bits.
 *
 * Each group of 32 inputs of an output has a scale and a middle: a weight is (level - half) * scale + middle. Inputs are
 * rounded to eight bits, by groups of 32 as well and each row by itself, so that whole numbers are multiplied; llama.cpp
 * multiplies its Q8_0 and Q4_1 so. What a row gets does not depend on the rows beside it.
 */
#include "linear.h"

enum { GROUP = 32, QUAD = 4, MOST_LEVEL_ROWS = 6 /* whose sums fit in the registers */ };

static struct rounded divide(char *room, long rows, long n_in) {
    struct rounded rounded;
    rounded.scale = (float *)room, room += rows * (n_in / GROUP) * sizeof(float);
    rounded.sum = (float *)room, room += rows * (n_in / GROUP) * sizeof(float);
    rounded.levels = (int8_t *)room;
    return rounded;
}

long level_room(long n_in) { return n_in + n_in / GROUP * 2 * (long)sizeof(float); }

static void round_row(const bf16 *x, int8_t *levels, float *scale, float *sum, long n_in) {
    for (long group = 0; group < n_in / GROUP; group++) {
        __m512 a = widened(_mm256_loadu_si256((const __m256i *)(x + group * GROUP)));
        __m512 b = widened(_mm256_loadu_si256((const __m256i *)(x + group * GROUP + LANES)));
        float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        __m512 factor = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
        __m512i p = _mm512_cvtps_epi32(_mm512_mul_ps(a, factor)), q = _mm512_cvtps_epi32(_mm512_mul_ps(b, factor));
        _mm_storeu_si128((__m128i *)(levels + group * GROUP), _mm512_cvtsepi32_epi8(p));
        _mm_storeu_si128((__m128i *)(levels + group * GROUP + LANES), _mm512_cvtsepi32_epi8(q));
        /* Not a number, or not finite: so is all that comes of it. */
        scale[group] = most * (1.0f / 127.0f) + 0.0f * _mm512_reduce_add_ps(_mm512_add_ps(a, b));
        sum[group] = scale[group] * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(p, q));
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

/* Sums of n rows times one panel; n and bits are constants to the compiler. */
static inline __attribute__((always_inline)) void accumulate(long n, long bits, const struct rounded *x, long row,
                                                             const uint8_t *b, const bf16 *scales, long n_in,
                                                             struct pending *pending) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512 half = _mm512_set1_ps(bits == 8 ? 128.0f : 8.0f);
    long groups = n_in / GROUP;
    __m512 low[MOST_LEVEL_ROWS], high[MOST_LEVEL_ROWS];
    for (long i = 0; i < n; i++) low[i] = high[i] = _mm512_setzero_ps();
    for (long group = 0; group < groups; group++, scales += 2 * COLUMNS) {
        __m512i whole_low[MOST_LEVEL_ROWS], whole_high[MOST_LEVEL_ROWS];
        for (long i = 0; i < n; i++) whole_low[i] = whole_high[i] = _mm512_setzero_si512();
        __m512i of_low = nibble, of_high = nibble;
        for (long quad = 0; quad < GROUP / QUAD; quad++) {
            __m512i b_low, b_high;
            if (bits == 4 && quad % 2) {
                b_low = _mm512_and_si512(_mm512_srli_epi16(of_low, 4), nibble);
                b_high = _mm512_and_si512(_mm512_srli_epi16(of_high, 4), nibble);
            } else {
                of_low = _mm512_load_si512(b), of_high = _mm512_load_si512(b + LANES * QUAD);
                b += COLUMNS * QUAD;
                b_low = bits == 4 ? _mm512_and_si512(of_low, nibble) : of_low;
                b_high = bits == 4 ? _mm512_and_si512(of_high, nibble) : of_high;
            }
            for (long i = 0; i < n; i++) {
                int32_t four;
                memcpy(&four, x->levels + (row + i) * n_in + group * GROUP + quad * QUAD, 4);
                __m512i a = _mm512_set1_epi32(four);
                whole_low[i] = _mm512_dpbusd_epi32(whole_low[i], b_low, a);
                whole_high[i] = _mm512_dpbusd_epi32(whole_high[i], b_high, a);
            }
        }
        __m512 scale_low = widened(_mm256_load_si256((const __m256i *)scales));
        __m512 scale_high = widened(_mm256_load_si256((const __m256i *)(scales + LANES)));
        __m512 zero_low = widened(_mm256_load_si256((const __m256i *)(scales + COLUMNS)));
        __m512 zero_high = widened(_mm256_load_si256((const __m256i *)(scales + COLUMNS + LANES)));
        zero_low = _mm512_fnmadd_ps(half, scale_low, zero_low);
        zero_high = _mm512_fnmadd_ps(half, scale_high, zero_high);
        for (long i = 0; i < n; i++) {
            __m512 scale = _mm512_set1_ps(x->scale[(row + i) * groups + group]);
            __m512 sum = _mm512_set1_ps(x->sum[(row + i) * groups + group]);
            low[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole_low[i]), _mm512_mul_ps(scale_low, scale), low[i]);
            high[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole_high[i]), _mm512_mul_ps(scale_high, scale), high[i]);
            low[i] = _mm512_fmadd_ps(zero_low, sum, low[i]);
            high[i] = _mm512_fmadd_ps(zero_high, sum, high[i]);
        }
    }
    for (long i = 0; i < n; i++) {
        _mm512_store_ps(pending->sums[0] + i * LANES, low[i]);
        _mm512_store_ps(pending->sums[1] + i * LANES, high[i]);
    }
}

void multiply_levels(const struct linear *linear, const struct rounded *x, const bf16 *other, bf16 *out, long first,
                     long rows, long panel) {
    long n_in = linear->n_in;
    const uint8_t *levels = linear->levels + panel * COLUMNS * n_in * linear->bits / 8;
    const bf16 *scales = linear->scales + panel * (n_in / GROUP) * 2 * COLUMNS;
    struct pending now;
    for (long row = first; row < first + rows; row += now.rows) {
        begin(&now, linear, other, out, row, least(MOST_LEVEL_ROWS, first + rows - row), panel);
        switch (linear->bits * 8 + now.rows) {
#define ROWS_OF(bits, n) case bits * 8 + n: accumulate(n, bits, x, row, levels, scales, n_in, &now); break;
            ROWS_OF(8, 1) ROWS_OF(8, 2) ROWS_OF(8, 3) ROWS_OF(8, 4) ROWS_OF(8, 5) ROWS_OF(8, 6)
            ROWS_OF(4, 1) ROWS_OF(4, 2) ROWS_OF(4, 3) ROWS_OF(4, 4) ROWS_OF(4, 5) ROWS_OF(4, 6)
#undef ROWS_OF
        }
        finish(linear, &now, MOST_LEVEL_ROWS);
    }
}
