/* What the kernels share. For x86 with AVX-512 BF16, and AMX (its tiles) where the CPU has it. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint16_t bf16;

enum {
    LANES = 16, /* numbers of 32 bits in a vector; rows of a tile */
    DEPTH = 32, /* bfloat16 numbers that a tile product sums over */
};

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
static inline __m512 widened(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
static inline __mmask16 first_lanes(long n) { return n >= LANES ? 0xffff : (__mmask16)((1u << n) - 1); }

/* 16 x 16 numbers of 32 bits. */
static inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
    }
}

/* 2 to the x, for x <= 0, to 3e-6 of it (bfloat16 keeps 4e-3); 0 below the smallest normal number. */
static inline __m512 power_of_two(__m512 x) {
    /* Adding this leaves the nearest whole number in the last bits. */
    const __m512 rounder = _mm512_set1_ps(12582912.0f);
    __m512 rounded = _mm512_add_ps(x, rounder);
    __m512 part = _mm512_sub_ps(x, _mm512_sub_ps(rounded, rounder));
    __m512 y = _mm512_set1_ps(9.5828529e-3f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.5906425e-2f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.4024099e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.9312419e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.0f));
    __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(rounded), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(y), exponent));
}

#ifdef __AMX_BF16__
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
