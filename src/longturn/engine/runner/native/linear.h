/* What linears with weights of different kinds have in common: panels of outputs, and how sums of them are finished. */
#pragma once

#include "tiles.h"

enum {
    COLUMNS = 2 * LANES, /* outputs computed together: a panel */
    FEW = 2 * LANES,     /* rows up to which a step waits for memory */
};
enum operation { NONE, SWISH, ADD, MULTIPLY, WIDE };

/* Numbers of 16 bits that one result takes: WIDE leaves it as a float. */
static inline long size_of_one(const struct linear *linear) { return linear->operation == WIDE ? 2 : 1; }

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

/* Rows row .. row + n of one panel are to be summed. */
static inline void begin(struct pending *pending, const struct linear *linear, const bf16 *other, bf16 *out, long row,
                         long n, long panel) {
    pending->other = other ? other + row * linear->n_out : NULL;
    pending->out = out + row * linear->n_out * size_of_one(linear);
    pending->column = panel * COLUMNS;
    pending->next = 0;
    pending->rows = n;
}

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

/* Linears with weights of few bits, see levels.c: the inputs as whole numbers (levels [rows, n_in], and of each group
 * [rows, groups] its scale, and its sum times that), which lie in a room of so many bytes per row. */
struct rounded { int8_t *levels; float *scale, *sum; };
long level_room(long n_in);
/* For all threads of a parallel region; ends when all are done. */
struct rounded round_rows(const bf16 *x, long rows, long n_in, char *room);
void multiply_levels(const struct linear *linear, const struct rounded *x, const bf16 *other, bf16 *out, long first,
                     long rows, long panel);
