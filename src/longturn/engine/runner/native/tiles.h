/* What the kernels share, and the tiles (AMX) of CPUs that have them. */
#pragma once

#include <math.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vectors.h"

#define EXPORT __attribute__((visibility("default")))

/* A weight in panels, and what is done with the results: see linear.c. Where it has levels of 8 or 4 bits, see levels.c,
 * these are read instead if there is nothing else, or rows are few. */
struct linear {
    const bf16 *packed;
    const uint8_t *levels;
    const bf16 *scales;
    const float *bias;
    int64_t bits, n_in, n_out, operation;
};

/* One span of a step: `n` tokens from row `row` on, at positions from `start` on; its KV lies in `runs`, pairs of first
 * slot and slot after the last, in the order of positions; `runs` is the number of its first. Set here: the number of
 * its first `task`, and what a task is: so many kv heads `together` for few.c, or one and a `block` of rows. */
struct span { int64_t row, n, start, runs, task, together, block; };

/* Heads and sizes of an attention; strides are numbers from row to row of the queries, and from slot to slot. */
struct shape { int64_t heads, kv_heads, dim, query_stride, kv_stride; float scale; };

static inline long round_up(long n, long unit) { return (n + unit - 1) / unit * unit; }
static inline long least(long a, long b) { return a < b ? a : b; }

#ifdef TILES
/* Whether the system lets this process use tiles. */
static inline int tiles_allowed(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

/* What was written before this is in memory: the compiler does not know that instructions for tiles read it. */
static inline void written(void) { __asm__ volatile("" ::: "memory"); }

/* rows: of all tiles but 6 and 7, which hold what is multiplied from the right. */
static inline void tiles_on(long rows) {
    struct { uint8_t palette, row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } __attribute__((packed)) config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = i < 6 ? rows : LANES;
    written();
    _tile_loadconfig(&config);
}

static inline void tiles_off(void) { _tile_release(); }
#else
static inline int tiles_allowed(void) { return 1; }
static inline void tiles_on(long rows) { (void)rows; }
static inline void tiles_off(void) {}
#endif

/* Parts of a layer, for all threads of a parallel region; each ends when all are done. */
void norm_rows(const bf16 *x, const float *weight, bf16 *out, long n, long width, float eps);
void rotate_rows(const bf16 *x, const float *query_norm, const float *key_norm, float eps, const bf16 *cos,
                 const bf16 *sin, bf16 *query, bf16 *keys, bf16 *values, const int64_t *slots, long n,
                 const struct shape *shape);
void linear_rows(const struct linear *linear, const bf16 *x, const bf16 *other, bf16 *out, long rows, char *room);
int64_t longturn_linear_room(const struct linear *linear);
void attend_spans(const bf16 *query, const bf16 *keys, const bf16 *values, bf16 *out, const struct span *spans,
                  long n_spans, const int64_t *runs, const struct shape *shape, char *rooms);
/* Before the last of them: cuts the spans into tasks. */
void number_tasks(struct span *spans, long n_spans, const struct shape *shape, int threads);
