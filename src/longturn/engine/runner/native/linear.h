/* What linears with weights of different kinds have in common: panels of outputs, and how sums of them are finished. */
#pragma once

#include "tiles.h"

enum {
    COLUMNS = 2 * LANES, /* outputs computed together: a panel */
    FEW = 2 * LANES,     /* rows up to which a step waits for memory */
};
/* GATED: sums with the first half of a weight's rows turn into swish(sum) times those with the second half. */
enum operation { NONE, ADD, GATED, WIDE };

/* Results of a panel: of a gated linear, it holds LANES rows of the first half and then those of the second. */
static inline long results_of(const struct linear *linear) { return linear->operation == GATED ? LANES : COLUMNS; }

/* Numbers of 16 bits that one result takes: WIDE leaves it as a float. */
static inline long size_of_one(const struct linear *linear) { return linear->operation == WIDE ? 2 : 1; }

static inline floats swish(floats x) {
    floats power = lesser_of(x * splat(-1.4426950408889634f), splat(126.0f));
    return x / (splat(1.0f) + power_of_two(power));
}

/* Sums of rows of one panel, [2][..][LANES], that are still to be finished and written. */
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
    pending->column = panel * results_of(linear);
    pending->next = 0;
    pending->rows = n;
}

/* With eight lanes, a weight is fetched 4 KiB ahead: a step of few rows takes 0.6 to 1 of what it takes without, and
 * with weights of few bits 0.9 to 1 (measured, Zen 4). */
static inline __attribute__((always_inline)) void fetch_weight(const void *at) {
#ifndef SIXTEEN_LANES
    _mm_prefetch((const char *)at + 4096, _MM_HINT_T0);
#else
    (void)at;
#endif
}

/* Of so many rows those to sum next, if it can be at most `most` at a time: about as many each time, since a few by
 * themselves would take as long as several more. */
static inline long even_part(long rows, long most) {
    long parts = round_up(rows, most) / most;
    return round_up(rows, parts) / parts;
}

/* Finish and write at most n more rows. */
static inline __attribute__((always_inline)) void finish(const struct linear *linear, struct pending *pending, long n) {
    if (pending->next == pending->rows) return;
    enum operation operation = (enum operation)linear->operation;
    long column = pending->column, left = linear->n_out - column, stop = least(pending->rows, pending->next + n);
    floats bias_low = splat(0), bias_high = bias_low;
    if (linear->bias) {
        const float *bias = linear->bias + (operation == GATED ? 2 * column : column);
        long there = operation == GATED ? COLUMNS : left;
        bias_low = some_floats(bias, there);
        bias_high = there > LANES ? some_floats(bias + LANES, there - LANES) : bias_high;
    }
    for (; pending->next < stop; pending->next++) {
        long i = pending->next, at = i * linear->n_out + column;
        floats y = load(pending->sums[0] + i * LANES) + bias_low, z = load(pending->sums[1] + i * LANES) + bias_high;
        if (operation == GATED) {
            put_some_halves(pending->out + at, narrowed(swish(y) * z), left);
            continue;
        }
        if (operation == WIDE) {
            float *to = (float *)pending->out + at;
            put_some_floats(to, y, left);
            if (left > LANES) put_some_floats(to + LANES, z, left - LANES);
            continue;
        }
        if (operation == ADD) {
            words beside = some_words(pending->other + at, left);
            y = y + widened(lower(beside)), z = z + widened(upper(beside));
        }
        put_some_words(pending->out + at, both_narrowed(y, z), left);
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
