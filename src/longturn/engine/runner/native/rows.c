/* What is done to each row by itself: rotary and RMS norm. */
#include "tiles.h"

/* x [dim] rotated by cos and sin [dim], sin with the sign of the rotation, to `to`. */
static void rotate(const bf16 *x, const bf16 *cos, const bf16 *sin, bf16 *to, long dim) {
    long half = dim / 2;
    for (long side = 0; side < 2; side++)
        for (long at = 0; at < half; at += LANES) {
            long there = half - at, mine = side * half + at, other = (1 - side) * half + at;
            floats a = widened(some_halves(x + mine, there));
            floats b = widened(some_halves(x + other, there));
            floats c = widened(some_halves(cos + mine, there));
            floats s = widened(some_halves(sin + mine, there));
            put_some_halves(to + mine, narrowed(fused(b, s, a * c)), there);
        }
}

/* x [width] / rms(x) * weight [width], to `to`. */
static void norm(const bf16 *x, const float *weight, bf16 *to, long width, float eps) {
    floats squares = splat(0);
    for (long at = 0; at < width; at += LANES) {
        floats y = widened(some_halves(x + at, width - at));
        squares = fused(y, y, squares);
    }
    floats factor = splat(1.0f / sqrtf(sum_in(squares) / (float)width + eps));
    for (long at = 0; at < width; at += LANES) {
        floats y = widened(some_halves(x + at, width - at)) * factor;
        put_some_halves(to + at, narrowed(y * some_floats(weight + at, width - at)), width - at);
    }
}

/* Rows x [n, width], each by itself. */
void norm_rows(const bf16 *x, const float *weight, bf16 *out, long n, long width, float eps) {
#pragma omp for schedule(static)
    for (long i = 0; i < n; i++) norm(x + i * width, weight, out + i * width, width, eps);
}

/* Of rows x [n, heads + 2 * kv_heads, dim] the queries are rotated to query [n, heads, dim], the keys into their slots
 * of the pool, and the values are copied there. Where there are norms [dim] of queries and keys, they come first. */
void rotate_rows(const bf16 *x, const float *query_norm, const float *key_norm, float eps, const bf16 *cos,
                 const bf16 *sin, bf16 *query, bf16 *keys, bf16 *values, const int64_t *slots, long n,
                 const struct shape *shape) {
    long heads = shape->heads, kv_heads = shape->kv_heads, dim = shape->dim, width = (heads + 2 * kv_heads) * dim;
#pragma omp for schedule(static)
    for (long i = 0; i < n; i++) {
        const bf16 *row = x + i * width;
        for (long head = 0; head < heads + kv_heads; head++) {
            const float *weight = head < heads ? query_norm : key_norm;
            const bf16 *from = row + head * dim;
            bf16 normed[256];
            if (weight) norm(from, weight, normed, dim, eps), from = normed;
            bf16 *to = head < heads ? query + (i * heads + head) * dim
                                    : keys + slots[i] * shape->kv_stride + (head - heads) * dim;
            rotate(from, cos + i * dim, sin + i * dim, to, dim);
        }
        memcpy(values + slots[i] * shape->kv_stride, row + (heads + kv_heads) * dim, kv_heads * dim * sizeof(bf16));
    }
}

EXPORT void longturn_norm(const bf16 *x, const float *weight, bf16 *out, int64_t n, int64_t width, float eps,
                          int threads) {
#pragma omp parallel num_threads(threads) if (n > 16)
    norm_rows(x, weight, out, n, width, eps);
}

EXPORT void longturn_rotate(const bf16 *x, const bf16 *cos, const bf16 *sin, bf16 *query, bf16 *keys, bf16 *values,
                            const int64_t *slots, int64_t n, const struct shape *shape, int threads) {
#pragma omp parallel num_threads(threads) if (n > 16)
    rotate_rows(x, NULL, NULL, 0, cos, sin, query, keys, values, slots, n, shape);
}
