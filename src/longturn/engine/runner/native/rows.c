/* What is done to each row by itself: rotary and RMS norm. */
#include "tiles.h"

/* x [dim] rotated by cos and sin [dim], sin with the sign of the rotation, to `to`. */
static void rotate(const bf16 *x, const bf16 *cos, const bf16 *sin, bf16 *to, long dim) {
    long half = dim / 2;
    for (long side = 0; side < 2; side++)
        for (long at = 0; at < half; at += LANES) {
            __mmask16 there = first_lanes(half - at);
            long mine = side * half + at, other = (1 - side) * half + at;
            __m512 a = widened(_mm256_maskz_loadu_epi16(there, x + mine));
            __m512 b = widened(_mm256_maskz_loadu_epi16(there, x + other));
            __m512 c = widened(_mm256_maskz_loadu_epi16(there, cos + mine));
            __m512 s = widened(_mm256_maskz_loadu_epi16(there, sin + mine));
            __m512 y = _mm512_fmadd_ps(b, s, _mm512_mul_ps(a, c));
            _mm256_mask_storeu_epi16(to + mine, there, (__m256i)_mm512_cvtneps_pbh(y));
        }
}

/* Of rows x [n, heads + 2 * kv_heads, dim] the queries are rotated to query [n, heads, dim], the keys into their slots
 * of the pool, and the values are copied there. */
void longturn_rotate(const bf16 *x, const bf16 *cos, const bf16 *sin, bf16 *query, bf16 *keys, bf16 *values,
                     const int64_t *slots, int64_t n, const struct shape *shape) {
    long heads = shape->heads, kv_heads = shape->kv_heads, dim = shape->dim, width = (heads + 2 * kv_heads) * dim;
#pragma omp parallel for schedule(static) if (n > 16)
    for (long i = 0; i < n; i++) {
        const bf16 *row = x + i * width;
        for (long head = 0; head < heads; head++)
            rotate(row + head * dim, cos + i * dim, sin + i * dim, query + (i * heads + head) * dim, dim);
        for (long head = 0; head < kv_heads; head++)
            rotate(row + (heads + head) * dim, cos + i * dim, sin + i * dim,
                   keys + slots[i] * shape->kv_stride + head * dim, dim);
        memcpy(values + slots[i] * shape->kv_stride, row + (heads + kv_heads) * dim, kv_heads * dim * sizeof(bf16));
    }
}

/* x [n, width] / rms(x) * weight [width], to `out`. */
void longturn_norm(const bf16 *x, const float *weight, bf16 *out, int64_t n, int64_t width, float eps) {
#pragma omp parallel for schedule(static) if (n > 16)
    for (long i = 0; i < n; i++) {
        const bf16 *row = x + i * width;
        __m512 squares = _mm512_setzero_ps();
        for (long at = 0; at < width; at += LANES) {
            __m512 y = widened(_mm256_maskz_loadu_epi16(first_lanes(width - at), row + at));
            squares = _mm512_fmadd_ps(y, y, squares);
        }
        __m512 factor = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + eps));
        for (long at = 0; at < width; at += LANES) {
            __mmask16 there = first_lanes(width - at);
            __m512 y = _mm512_mul_ps(widened(_mm256_maskz_loadu_epi16(there, row + at)), factor);
            y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(there, weight + at));
            _mm256_mask_storeu_epi16(out + i * width + at, there, (__m256i)_mm512_cvtneps_pbh(y));
        }
    }
}
