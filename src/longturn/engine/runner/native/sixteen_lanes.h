/* The vocabulary of vectors.h with AVX-512. */
#pragma once

static inline floats splat(float x) { return _mm512_set1_ps(x); }
static inline words splat_word(int32_t x) { return _mm512_set1_epi32(x); }
/* From and to memory that is aligned to a vector. */
static inline floats load(const float *from) { return _mm512_load_ps(from); }
static inline void store(float *to, floats x) { _mm512_store_ps(to, x); }
static inline words load_words(const void *from) { return _mm512_load_si512(from); }
static inline void store_words(void *to, words x) { _mm512_store_si512(to, x); }
/* The same from anywhere. */
static inline words words_at(const void *from) { return _mm512_loadu_si512(from); }

static inline floats fused(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline floats greater_of(floats a, floats b) { return _mm512_max_ps(a, b); }
static inline floats lesser_of(floats a, floats b) { return _mm512_min_ps(a, b); }
static inline floats magnitude(floats x) { return _mm512_abs_ps(x); }
static inline float greatest_in(floats x) { return _mm512_reduce_max_ps(x); }
static inline float sum_in(floats x) { return _mm512_reduce_add_ps(x); }
static inline float first_in(floats x) { return _mm512_cvtss_f32(x); }
static inline floats as_floats(words x) { return _mm512_castsi512_ps(x); }
static inline words as_words(floats x) { return _mm512_castps_si512(x); }
static inline floats converted(words x) { return _mm512_cvtepi32_ps(x); }
static inline words rounded_to_words(floats x) { return _mm512_cvtps_epi32(x); }
static inline int32_t sum_of_words(words x) { return _mm512_reduce_add_epi32(x); }
static inline words shifted_left(words x, int n) { return _mm512_slli_epi32(x, n); }
static inline words shifted_right(words x, int n) { return _mm512_srli_epi32(x, n); }
static inline words only(words x, words bits) { return _mm512_and_si512(x, bits); }

/* A mask of the first n lanes, or numbers of 16 bits; of all if there are fewer. */
static inline __mmask16 first_lanes(long n) { return n >= LANES ? 0xffff : (__mmask16)((1u << n) - 1); }
static inline __mmask32 first_halves(long n) { return n >= DEPTH ? ~0u : (1u << n) - 1; }
/* The first n numbers from or to memory, with zeros after them; all if a vector has fewer. */
static inline floats some_floats(const float *from, long n) { return _mm512_maskz_loadu_ps(first_lanes(n), from); }
static inline void put_some_floats(float *to, floats x, long n) { _mm512_mask_storeu_ps(to, first_lanes(n), x); }
static inline halves some_halves(const bf16 *from, long n) { return _mm256_maskz_loadu_epi16(first_lanes(n), from); }
static inline void put_some_halves(bf16 *to, halves x, long n) { _mm256_mask_storeu_epi16(to, first_lanes(n), x); }
static inline words some_words(const bf16 *from, long n) { return _mm512_maskz_loadu_epi16(first_halves(n), from); }
static inline void put_some_words(bf16 *to, words x, long n) { _mm512_mask_storeu_epi16(to, first_halves(n), x); }

/* The first n lanes of x, then those of `rest`. */
static inline floats first_of(floats x, long n, floats rest) { return _mm512_mask_mov_ps(rest, first_lanes(n), x); }
/* x where a lane of `at` is no less than `least`, and `rest` elsewhere. */
static inline floats where_at_least(words at, int32_t least, floats x, floats rest) {
    return _mm512_mask_mov_ps(rest, _mm512_cmpge_epi32_mask(at, splat_word(least)), x);
}
static inline int any_less(words at, int32_t bound) { return _mm512_cmplt_epi32_mask(at, splat_word(bound)) != 0; }
static inline int any_differs(floats x, float from) { return _mm512_cmpneq_ps_mask(x, splat(from)) != 0; }

/* y times 2 to the whole number in the last bits of `exponent`; 0 where x is below `least`. */
static inline floats times_power(floats y, floats exponent, floats x, float least) {
    __mmask16 normal = _mm512_cmp_ps_mask(x, splat(least), _CMP_GE_OQ);
    return as_floats(_mm512_maskz_add_epi32(normal, as_words(y), shifted_left(as_words(exponent), 23)));
}

static inline halves lower(words x) { return _mm512_castsi512_si256(x); }
static inline halves upper(words x) { return _mm512_extracti64x4_epi64(x, 1); }
static inline floats widened(halves x) { return as_floats(shifted_left(_mm512_cvtepu16_epi32(x), 16)); }
static inline halves narrowed(floats x) { return (halves)_mm512_cvtneps_pbh(x); }
static inline words both_narrowed(floats low, floats high) { return (words)_mm512_cvtne2ps_pbh(high, low); }

/* The numbers of 16 bits of two vectors taken in turns, by parts of 128 bits; and undone for their sums. */
static inline words turns_low(words even, words odd) { return _mm512_unpacklo_epi16(even, odd); }
static inline words turns_high(words even, words odd) { return _mm512_unpackhi_epi16(even, odd); }
static inline words without_turns(floats low, floats high) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    return both_narrowed(_mm512_permutex2var_ps(low, first, high), _mm512_permutex2var_ps(low, second, high));
}

/* Sums of every fourth lane. */
static inline __m128 added_by_four(__m128 total, floats x) {
    total = _mm_add_ps(total, _mm512_castps512_ps128(x));
    total = _mm_add_ps(total, _mm512_extractf32x4_ps(x, 1));
    total = _mm_add_ps(total, _mm512_extractf32x4_ps(x, 2));
    return _mm_add_ps(total, _mm512_extractf32x4_ps(x, 3));
}

/* Words to bytes, the greatest or least where they do not fit. */
static inline void put_bytes(int8_t *to, words x) { _mm_storeu_si128((__m128i *)to, _mm512_cvtsepi32_epi8(x)); }

/* LANES x LANES words. */
static inline void transpose(words r[16]) {
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
