/* What attention of many rows and of few have in common: how keys are read from the pool. */
#pragma once

#include "tiles.h"

enum {
    KEYS = 64,  /* keys taken at a time: what belongs to them fits in the first-level cache, with eight lanes
                 * keys and values by turns */
#if defined(SIXTEEN_LANES) && !defined(TILES)
    FEWEST_ROWS = 8, /* up to so many rows of a kv head are attended as few.c does */
#else
    FEWEST_ROWS = 4, /* tiles are as quick for more, and with eight lanes registers hold no more */
#endif
    MOST_HEADS = 4,  /* kv heads that it takes together: their keys lie side by side */
};

/* Where a span's keys are read on: run by run. */
struct reader { const int64_t *run; int64_t slot; };

static inline int64_t next_slot(struct reader *reader) {
    if (reader->slot == reader->run[1]) reader->run += 2, reader->slot = reader->run[0];
    return reader->slot++;
}

/* The heads of one token that belong to n_heads kv heads (at most MOST_HEADS), `rows` (at most FEWEST_ROWS) to each:
 * query [n_heads * rows, dim] to out of the same shape. It sees n keys; `keys` and `values` begin with the first of the
 * kv heads. */
void attend_few(long rows, long n_heads, const bf16 *query, bf16 *out, const bf16 *keys, const bf16 *values,
                struct reader reader, long n, const struct shape *shape);

/* Whether a span is to be attended so. */
static inline int few_rows(const struct span *span, const struct shape *shape) {
    return span->n == 1 && shape->heads / shape->kv_heads <= FEWEST_ROWS;
}
