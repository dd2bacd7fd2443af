/* Attention of few rows: the token of an answer, one row for each head of a kv head.
 *
 * A tile of attention.c would be empty but for these. Here a vector holds one row's scores for 16 keys, and of values 16
 * numbers of a row. All is summed in the order of attention.c, so that the bits are those that the row would have got
 * there, as part of a prompt.
 */
#include "attention.h"

/* What is kept of a kv head's rows from block to block. */
struct head {
    bf16 query[FEWEST_ROWS][256] __attribute__((aligned(64)));
    /* [dim / 32][2][16]: of 32 numbers those that interleaving puts into the first vector, and the others. */
    float sums[FEWEST_ROWS][256] __attribute__((aligned(64)));
    float most[FEWEST_ROWS], total[FEWEST_ROWS];
};

/* Where the keys and values of a block lie. */
struct block { const bf16 *keys[KEYS], *values[KEYS]; };

/* What a head makes of a block. */
struct made {
    float scores[FEWEST_ROWS][KEYS] __attribute__((aligned(64)));
    bf16 shares[FEWEST_ROWS][KEYS] __attribute__((aligned(64)));
};

/* The number of rows is a constant to the compiler. */
#define EACH_NUMBER static inline __attribute__((always_inline)) void

/* `offset` numbers after the beginnings of a block's rows lie those of the head. */
EACH_NUMBER score(long rows, const struct head *head, struct made *made, const struct block *block, long offset, long n,
                  long dim) {
    for (long key = 0; key < n; key += LANES) {
        __m512 c[FEWEST_ROWS];
        for (long i = 0; i < rows; i++) c[i] = _mm512_setzero_ps();
        for (long at = 0; at < dim; at += DEPTH) {
            __m512i r[LANES];
            for (long i = 0; i < LANES; i++) r[i] = piece_of(block->keys[key + i] + offset, at, dim);
            transpose(r);
            for (long pair = 0; pair < LANES; pair++)
                for (long i = 0; i < rows; i++) {
                    int32_t both;
                    memcpy(&both, head->query[i] + at + pair * 2, 4);
                    c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)r[pair], (__m512bh)_mm512_set1_epi32(both));
                }
        }
        for (long i = 0; i < rows; i++) _mm512_store_ps(made->scores[i] + key, c[i]);
    }
}

/* Scores of one row to shares; what was summed before is scaled down where the greatest has grown. */
static void share_out(struct head *head, struct made *made, long row, long there, long n, float scale, long dim) {
    float *scores = made->scores[row];
    const __m512 log_scale = _mm512_set1_ps(scale * 1.4426950408889634f);
    for (long key = there / LANES * LANES; key < n; key += LANES) {
        __mmask16 seen = there > key ? first_lanes(there - key) : 0;
        _mm512_store_ps(scores + key, _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), seen, scores + key));
    }
    __m512 greatest = _mm512_load_ps(scores);
    for (long key = LANES; key < n; key += LANES) greatest = _mm512_max_ps(greatest, _mm512_load_ps(scores + key));
    __m512 before = _mm512_set1_ps(head->most[row]);
    __m512 most = _mm512_max_ps(before, _mm512_set1_ps(_mm512_reduce_max_ps(greatest)));
    __m512 base = _mm512_mul_ps(most, log_scale);
    /* One sum for every fourth key. */
    __m128 total = _mm_setzero_ps();
    for (long key = 0; key < n; key += LANES) {
        __m512 share = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + key), log_scale, base));
        total = _mm_add_ps(total, _mm512_castps512_ps128(share));
        total = _mm_add_ps(total, _mm512_extractf32x4_ps(share, 1));
        total = _mm_add_ps(total, _mm512_extractf32x4_ps(share, 2));
        total = _mm_add_ps(total, _mm512_extractf32x4_ps(share, 3));
        _mm256_store_si256((__m256i *)(made->shares[row] + key), (__m256i)_mm512_cvtneps_pbh(share));
    }
    float sum = (total[0] + total[1]) + (total[2] + total[3]);
    __m512 kept = power_of_two(_mm512_mul_ps(_mm512_sub_ps(before, most), log_scale));
    float factor = _mm512_cvtss_f32(kept);
    head->most[row] = _mm512_cvtss_f32(most);
    head->total[row] = fmaf(head->total[row], factor, sum);
    if (factor != 1.0f)
        for (long at = 0; at < dim; at += LANES)
            _mm512_store_ps(head->sums[row] + at, _mm512_mul_ps(_mm512_load_ps(head->sums[row] + at), kept));
}

EACH_NUMBER weigh(long rows, struct head *head, const struct made *made, const struct block *block, long offset, long n,
                  long dim) {
    for (long at = 0; at < dim; at += DEPTH) {
        __m512 low[FEWEST_ROWS], high[FEWEST_ROWS];
        for (long i = 0; i < rows; i++) {
            low[i] = _mm512_load_ps(head->sums[i] + at);
            high[i] = _mm512_load_ps(head->sums[i] + at + LANES);
        }
        for (long key = 0; key < n; key += 2) {
            __m512i even = piece_of(block->values[key] + offset, at, dim);
            __m512i odd = piece_of(block->values[key + 1] + offset, at, dim);
            __m512bh first = (__m512bh)_mm512_unpacklo_epi16(even, odd);
            __m512bh second = (__m512bh)_mm512_unpackhi_epi16(even, odd);
            for (long i = 0; i < rows; i++) {
                int32_t both;
                memcpy(&both, made->shares[i] + key, 4);
                __m512bh shares = (__m512bh)_mm512_set1_epi32(both);
                low[i] = _mm512_dpbf16_ps(low[i], first, shares);
                high[i] = _mm512_dpbf16_ps(high[i], second, shares);
            }
        }
        for (long i = 0; i < rows; i++) {
            _mm512_store_ps(head->sums[i] + at, low[i]);
            _mm512_store_ps(head->sums[i] + at + LANES, high[i]);
        }
    }
}

/* The next n keys and values, filled up with zeros. Each line of them is read once, in their order: that is what has the
 * CPU fetch ahead, and twice as fast as one head after the other or its instructions for fetching (measured, Zen 4). */
static void take_block(struct block *block, struct reader *reader, long n, const bf16 *keys, const bf16 *values,
                       long stride, long width) {
    static const bf16 nothing[MOST_HEADS * 256];
    for (long i = 0; i < KEYS; i++) {
        int64_t slot = i < n ? next_slot(reader) : 0;
        block->keys[i] = i < n ? keys + slot * stride : nothing;
        block->values[i] = i < n ? values + slot * stride : nothing;
        for (long at = 0; i < n && at < width; at += DEPTH) {
            (void)*(const volatile bf16 *)(block->keys[i] + at);
            (void)*(const volatile bf16 *)(block->values[i] + at);
        }
    }
}

EACH_NUMBER attend(long rows, struct head *heads, long n_heads, const bf16 *keys, const bf16 *values,
                   struct reader reader, long n, const struct shape *shape) {
    struct made made;
    struct block block;
    long dim = shape->dim;
    for (long left = n; left > 0; left -= KEYS) {
        long there = least(KEYS, left), filled = round_up(there, DEPTH);
        take_block(&block, &reader, there, keys, values, shape->kv_stride, n_heads * dim);
        for (long number = 0; number < n_heads; number++) {
            struct head *head = &heads[number];
            score(rows, head, &made, &block, number * dim, filled, dim);
            for (long i = 0; i < rows; i++) share_out(head, &made, i, there, filled, shape->scale, round_up(dim, DEPTH));
            weigh(rows, head, &made, &block, number * dim, filled, dim);
        }
    }
}

void attend_few(long rows, long n_heads, const bf16 *query, bf16 *out, const bf16 *keys, const bf16 *values,
                struct reader reader, long n, const struct shape *shape) {
    /* Of 32 numbers the first 16, and the others, as they lie in two vectors of sums. */
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    struct head heads[MOST_HEADS];
    long dim = shape->dim;
    for (long row = 0; row < n_heads * rows; row++) {
        struct head *head = &heads[row / rows];
        long i = row % rows;
        head->most[i] = -INFINITY, head->total[i] = 0;
        for (long at = 0; at < dim; at += DEPTH) {
            _mm512_store_si512(head->query[i] + at, piece_of(query + row * dim, at, dim));
            _mm512_store_ps(head->sums[i] + at, _mm512_setzero_ps());
            _mm512_store_ps(head->sums[i] + at + LANES, _mm512_setzero_ps());
        }
    }
    switch (rows) {
#define ROWS_OF(rows) case rows: attend(rows, heads, n_heads, keys, values, reader, n, shape); break;
        ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6) ROWS_OF(7) ROWS_OF(8)
#undef ROWS_OF
    }
    for (long row = 0; row < n_heads * rows; row++)
        for (long at = 0; at < dim; at += DEPTH) {
            const struct head *head = &heads[row / rows];
            __m512 total = _mm512_set1_ps(head->total[row % rows]);
            __m512 low = _mm512_div_ps(_mm512_load_ps(head->sums[row % rows] + at), total);
            __m512 high = _mm512_div_ps(_mm512_load_ps(head->sums[row % rows] + at + LANES), total);
            __m512 a = _mm512_permutex2var_ps(low, first, high), b = _mm512_permutex2var_ps(low, second, high);
            __mmask32 there = dim - at >= DEPTH ? ~0u : (1u << (dim - at)) - 1;
            _mm512_mask_storeu_epi16(out + row * dim + at, there, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
}
