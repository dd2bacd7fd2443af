/* The vocabulary of vectors.h with AVX2; what each word means is said in sixteen_lanes.h. */
#pragma once

static inline floats splat(float x) { return _mm256_set1_ps(x); }
static inline words splat_word(int32_t x) { return _mm256_set1_epi32(x); }
static inline floats load(const float *from) { return _mm256_load_ps(from); }
static inline void store(float *to, floats x) { _mm256_store_ps(to, x); }
static inline words load_words(const void *from) { return _mm256_load_si256(from); }
static inline void store_words(void *to, words x) { _mm256_store_si256(to, x); }
static inline words words_at(const void *from) { return _mm256_loadu_si256(from); }

static inline floats fused(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline floats greater_of(floats a, floats b) { return _mm256_max_ps(a, b); }
static inline floats lesser_of(floats a, floats b) { return _mm256_min_ps(a, b); }
static inline floats as_floats(words x) { return _mm256_castsi256_ps(x); }
static inline words as_words(floats x) { return _mm256_castps_si256(x); }
static inline floats magnitude(floats x) { return _mm256_andnot_ps(splat(-0.0f), x); }
static inline float first_in(floats x) { return _mm256_cvtss_f32(x); }
static inline float greatest_in(floats x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
static inline float sum_in(floats x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
static inline floats converted(words x) { return _mm256_cvtepi32_ps(x); }
static inline words rounded_to_words(floats x) { return _mm256_cvtps_epi32(x); }
static inline int32_t sum_of_words(words x) {
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_add_epi32(y, _mm_unpackhi_epi64(y, y));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 1)));
}
static inline words shifted_left(words x, int n) { return _mm256_slli_epi32(x, n); }
static inline words shifted_right(words x, int n) { return _mm256_srli_epi32(x, n); }
static inline words only(words x, words bits) { return _mm256_and_si256(x, bits); }

static inline words first_lanes(long n) {
    return _mm256_cmpgt_epi32(splat_word((int32_t)(n < LANES ? n : LANES)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline floats some_floats(const float *from, long n) { return _mm256_maskload_ps(from, first_lanes(n)); }
/* Storing with a mask is slow. */
static inline void put_some_floats(float *to, floats x, long n) {
    if (n >= LANES)
        _mm256_storeu_ps(to, x);
    else
        _mm256_maskstore_ps(to, first_lanes(n), x);
}
/* There are no masks for 16 bits. */
static inline halves some_halves(const bf16 *from, long n) {
    if (n >= LANES) return _mm_loadu_si128((const __m128i *)from);
    bf16 all[LANES] = {0};
    for (long i = 0; i < n; i++) all[i] = from[i];
    return _mm_loadu_si128((const __m128i *)all);
}
static inline void put_some_halves(bf16 *to, halves x, long n) {
    if (n >= LANES) {
        _mm_storeu_si128((__m128i *)to, x);
        return;
    }
    bf16 all[LANES];
    _mm_storeu_si128((__m128i *)all, x);
    for (long i = 0; i < n; i++) to[i] = all[i];
}
static inline words some_words(const bf16 *from, long n) {
    if (n >= DEPTH) return words_at(from);
    return _mm256_setr_m128i(some_halves(from, n), n > LANES ? some_halves(from + LANES, n - LANES) : _mm_setzero_si128());
}
static inline halves lower(words x) { return _mm256_castsi256_si128(x); }
static inline halves upper(words x) { return _mm256_extracti128_si256(x, 1); }
static inline void put_some_words(bf16 *to, words x, long n) {
    put_some_halves(to, lower(x), n);
    if (n > LANES) put_some_halves(to + LANES, upper(x), n - LANES);
}

static inline floats first_of(floats x, long n, floats rest) {
    return _mm256_blendv_ps(rest, x, as_floats(first_lanes(n)));
}
static inline floats where_at_least(words at, int32_t least, floats x, floats rest) {
    return _mm256_blendv_ps(x, rest, as_floats(_mm256_cmpgt_epi32(splat_word(least), at)));
}
static inline int any_less(words at, int32_t bound) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(splat_word(bound), at)) != 0;
}
static inline int any_differs(floats x, float from) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, splat(from), _CMP_NEQ_UQ)) != 0;
}

static inline floats times_power(floats y, floats exponent, floats x, float least) {
    words normal = as_words(_mm256_cmp_ps(x, splat(least), _CMP_GE_OQ));
    return as_floats(only(_mm256_add_epi32(as_words(y), shifted_left(as_words(exponent), 23)), normal));
}

static inline floats widened(halves x) { return as_floats(shifted_left(_mm256_cvtepu16_epi32(x), 16)); }
/* In the upper half of each word: to the nearest, of two to the even one; what is not a number stays so. */
static inline words narrowed_words(floats x) {
    words bits = as_words(x), odd = only(shifted_right(bits, 16), splat_word(1));
    words nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, splat_word(0x7fff)));
    words none = _mm256_or_si256(bits, splat_word(0x400000));
    return as_words(_mm256_blendv_ps(as_floats(nearest), as_floats(none), _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
static inline words both_narrowed(floats low, floats high) {
    words a = shifted_right(narrowed_words(low), 16), b = shifted_right(narrowed_words(high), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
static inline halves narrowed(floats x) { return lower(both_narrowed(x, x)); }

static inline words turns_low(words even, words odd) { return _mm256_unpacklo_epi16(even, odd); }
static inline words turns_high(words even, words odd) { return _mm256_unpackhi_epi16(even, odd); }
static inline words without_turns(floats low, floats high) {
    return both_narrowed(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

static inline __m128 added_by_four(__m128 total, floats x) {
    return _mm_add_ps(_mm_add_ps(total, _mm256_castps256_ps128(x)), _mm256_extractf128_ps(x, 1));
}

static inline void put_bytes(int8_t *to, words x) {
    __m128i y = _mm_packs_epi32(lower(x), upper(x));
    _mm_storel_epi64((__m128i *)to, _mm_packs_epi16(y, y));
}

static inline void transpose(words r[8]) {
    __m256i t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        t[j] = _mm256_permute2x128_si256(r[j], r[j + 4], 0x20);
        t[j + 4] = _mm256_permute2x128_si256(r[j], r[j + 4], 0x31);
    }
    for (int j = 0; j < 8; j++) r[j] = t[j];
}
