/* AVX-512 in plain C, so that kernels for it are tested on every CPU: included before all else with -include. Only what
 * they use is here. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float lanes_f __attribute__((vector_size(64), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(64), may_alias));
typedef uint32_t lanes_u __attribute__((vector_size(64), may_alias));
typedef uint16_t lanes_h __attribute__((vector_size(64), may_alias));
typedef int64_t lanes_l __attribute__((vector_size(64), may_alias));
typedef uint16_t halves_h __attribute__((vector_size(32), may_alias));

#define EMULATED static inline __attribute__((always_inline))
#define EACH(n) for (int i = 0; i < (n); i++)

/* ---- Loads and stores. ---- */

EMULATED __m512i emulated_loadu(const void *from) {
    __m512i x;
    memcpy(&x, from, 64);
    return x;
}
EMULATED __m512 emulated_loadu_ps(const float *from) { return (__m512)emulated_loadu(from); }
EMULATED void emulated_store_512(void *to, __m512i x) { memcpy(to, &x, 64); }
EMULATED void emulated_store_ps(float *to, __m512 x) { memcpy(to, &x, 64); }
EMULATED __m512 emulated_maskz_loadu_ps(__mmask16 mask, const float *from) {
    lanes_f x;
    EACH(16) x[i] = mask >> i & 1 ? from[i] : 0;
    return (__m512)x;
}
EMULATED void emulated_mask_storeu_ps(float *to, __mmask16 mask, __m512 x) {
    EACH(16) if (mask >> i & 1) to[i] = ((lanes_f)x)[i];
}
EMULATED __m512i emulated_maskz_loadu_epi16(__mmask32 mask, const void *from) {
    lanes_h x;
    EACH(32) x[i] = mask >> i & 1 ? ((const uint16_t *)from)[i] : 0;
    return (__m512i)x;
}
EMULATED void emulated_mask_storeu_epi16(void *to, __mmask32 mask, __m512i x) {
    EACH(32) if (mask >> i & 1) ((uint16_t *)to)[i] = ((lanes_h)x)[i];
}
EMULATED __m256i emulated_maskz_loadu_half(__mmask16 mask, const void *from) {
    halves_h x;
    EACH(16) x[i] = mask >> i & 1 ? ((const uint16_t *)from)[i] : 0;
    return (__m256i)x;
}
EMULATED void emulated_mask_storeu_half(void *to, __mmask16 mask, __m256i x) {
    EACH(16) if (mask >> i & 1) ((uint16_t *)to)[i] = ((halves_h)x)[i];
}

/* ---- Numbers. ---- */

EMULATED __m512 emulated_set1_ps(float x) {
    lanes_f y;
    EACH(16) y[i] = x;
    return (__m512)y;
}
EMULATED __m512i emulated_set1_epi32(int32_t x) {
    lanes_i y;
    EACH(16) y[i] = x;
    return (__m512i)y;
}
EMULATED __m512 emulated_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    EACH(16) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
/* The second where either is no number. */
EMULATED __m512 emulated_max_ps(__m512 a, __m512 b) {
    EACH(16) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}
EMULATED __m512 emulated_min_ps(__m512 a, __m512 b) {
    EACH(16) b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}
EMULATED __m512 emulated_abs_ps(__m512 x) { return (__m512)((lanes_u)x & 0x7fffffffu); }
EMULATED float emulated_reduce_max_ps(__m512 x) {
    float most = x[0];
    EACH(16) most = x[i] > most ? x[i] : most;
    return most;
}
EMULATED float emulated_reduce_add_ps(__m512 x) {
    for (int step = 8; step; step /= 2) EACH(step) x[i] += x[i + step];
    return x[0];
}
EMULATED int32_t emulated_reduce_add_epi32(__m512i x) {
    uint32_t sum = 0;
    EACH(16) sum += ((lanes_u)x)[i];
    return (int32_t)sum;
}
EMULATED __m512 emulated_cvtepi32_ps(__m512i x) {
    lanes_f y;
    EACH(16) y[i] = (float)((lanes_i)x)[i];
    return (__m512)y;
}
EMULATED __m512i emulated_cvtps_epi32(__m512 x) {
    lanes_i y;
    EACH(16) y[i] = fabsf(x[i]) < 2147483648.0f ? (int32_t)lrintf(x[i]) : INT32_MIN;
    return (__m512i)y;
}
EMULATED __m512i emulated_slli_epi32(__m512i x, unsigned n) { return (__m512i)((lanes_u)x << n); }
EMULATED __m512i emulated_srli_epi32(__m512i x, unsigned n) { return (__m512i)((lanes_u)x >> n); }
EMULATED __m512i emulated_maskz_add_epi32(__mmask16 mask, __m512i a, __m512i b) {
    lanes_u sum = (lanes_u)a + (lanes_u)b;
    EACH(16) sum[i] = mask >> i & 1 ? sum[i] : 0;
    return (__m512i)sum;
}
EMULATED __m512i emulated_cvtepu16_epi32(__m256i x) {
    lanes_u y;
    EACH(16) y[i] = ((halves_h)x)[i];
    return (__m512i)y;
}
EMULATED __m128i emulated_cvtsepi32_epi8(__m512i x) {
    int8_t y[16];
    EACH(16) {
        int32_t one = ((lanes_i)x)[i];
        y[i] = (int8_t)(one > 127 ? 127 : one < -128 ? -128 : one);
    }
    __m128i z;
    memcpy(&z, y, 16);
    return z;
}

/* ---- Comparisons and choices. ---- */

EMULATED __m512 emulated_mask_mov_ps(__m512 other, __mmask16 mask, __m512 x) {
    EACH(16) other[i] = mask >> i & 1 ? x[i] : other[i];
    return other;
}
EMULATED __m512i emulated_mask_mov_epi16(__m512i other, __mmask32 mask, __m512i x) {
    lanes_h y = (lanes_h)other;
    EACH(32) y[i] = mask >> i & 1 ? ((lanes_h)x)[i] : y[i];
    return (__m512i)y;
}
#define EMULATED_COMPARISON(name, type, lanes, comparison) \
    EMULATED __mmask16 name(type a, type b) { \
        uint32_t mask = 0; \
        EACH(16) mask |= (uint32_t)(((lanes)a)[i] comparison ((lanes)b)[i]) << i; \
        return (__mmask16)mask; \
    }
EMULATED_COMPARISON(emulated_cmpge_epi32, __m512i, lanes_i, >=)
EMULATED_COMPARISON(emulated_cmplt_epi32, __m512i, lanes_i, <)
EMULATED_COMPARISON(emulated_cmpneq_ps, __m512, lanes_f, !=)
EMULATED_COMPARISON(emulated_cmp_ps, __m512, lanes_f, >=)

/* ---- Lanes in another order. ---- */

EMULATED __m512 emulated_permutex2var_ps(__m512 a, __m512i order, __m512 b) {
    lanes_f y;
    EACH(16) {
        int at = ((lanes_i)order)[i];
        y[i] = at & 16 ? b[at & 15] : a[at & 15];
    }
    return (__m512)y;
}
EMULATED __m512i emulated_permutexvar_epi16(__m512i order, __m512i x) {
    lanes_h y;
    EACH(32) y[i] = ((lanes_h)x)[((lanes_h)order)[i] & 31];
    return (__m512i)y;
}
/* Of every part of 128 bits, `count` numbers: the low or the high half of each, in turns. */
#define EMULATED_TURNS(name, lanes, count, high) \
    EMULATED __m512i name(__m512i a, __m512i b) { \
        lanes y; \
        for (int part = 0; part < 4 * (count); part += (count)) EACH((count) / 2) { \
            int at = part + i + (high) * (count) / 2; \
            y[part + 2 * i] = ((lanes)a)[at], y[part + 2 * i + 1] = ((lanes)b)[at]; \
        } \
        return (__m512i)y; \
    }
EMULATED_TURNS(emulated_unpacklo_epi16, lanes_h, 8, 0)
EMULATED_TURNS(emulated_unpackhi_epi16, lanes_h, 8, 1)
EMULATED_TURNS(emulated_unpacklo_epi32, lanes_i, 4, 0)
EMULATED_TURNS(emulated_unpackhi_epi32, lanes_i, 4, 1)
EMULATED_TURNS(emulated_unpacklo_epi64, lanes_l, 2, 0)
EMULATED_TURNS(emulated_unpackhi_epi64, lanes_l, 2, 1)
EMULATED __m512i emulated_shuffle_i32x4(__m512i a, __m512i b, int order) {
    lanes_i y;
    EACH(16) {
        int part = order >> i / 4 * 2 & 3;
        y[i] = ((lanes_i)(i < 8 ? a : b))[part * 4 + i % 4];
    }
    return (__m512i)y;
}
EMULATED __m128 emulated_extractf32x4_ps(__m512 x, int part) {
    __m128 y;
    memcpy(&y, (float *)&x + 4 * part, 16);
    return y;
}
EMULATED __m256i emulated_extracti64x4_epi64(__m512i x, int part) {
    __m256i y;
    memcpy(&y, (char *)&x + 32 * part, 32);
    return y;
}
EMULATED __m256i emulated_castsi512_si256(__m512i x) { return emulated_extracti64x4_epi64(x, 0); }
EMULATED __m128 emulated_castps512_ps128(__m512 x) { return emulated_extractf32x4_ps(x, 0); }

/* ---- bfloat16, and products of bytes. ---- */

EMULATED uint16_t emulated_narrowed(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
EMULATED float emulated_widened(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
EMULATED __m256i emulated_cvtneps_pbh(__m512 x) {
    halves_h y;
    EACH(16) y[i] = emulated_narrowed(x[i]);
    return (__m256i)y;
}
EMULATED __m512i emulated_cvtne2ps_pbh(__m512 high, __m512 low) {
    lanes_h y;
    EACH(16) y[i] = emulated_narrowed(low[i]), y[16 + i] = emulated_narrowed(high[i]);
    return (__m512i)y;
}
/* The second numbers of pairs come first. */
EMULATED __m512 emulated_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    for (int half = 1; half >= 0; half--)
        EACH(16) sum[i] = fmaf(emulated_widened(((lanes_h)a)[2 * i + half]),
                               emulated_widened(((lanes_h)b)[2 * i + half]), sum[i]);
    return sum;
}
/* Bytes of a have no sign. */
EMULATED __m512i emulated_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    lanes_i y = (lanes_i)sum;
    EACH(64) y[i / 4] += ((uint8_t *)&a)[i] * ((int8_t *)&b)[i];
    return (__m512i)y;
}

#undef EACH
#undef EMULATED
#define _mm512_loadu_si512 emulated_loadu
#define _mm512_load_si512 emulated_loadu
#define _mm512_load_ps emulated_loadu_ps
#define _mm512_store_si512 emulated_store_512
#define _mm512_store_ps emulated_store_ps
#define _mm512_maskz_loadu_ps emulated_maskz_loadu_ps
#define _mm512_mask_storeu_ps emulated_mask_storeu_ps
#define _mm512_maskz_loadu_epi16 emulated_maskz_loadu_epi16
#define _mm512_mask_storeu_epi16 emulated_mask_storeu_epi16
#define _mm256_maskz_loadu_epi16 emulated_maskz_loadu_half
#define _mm256_mask_storeu_epi16 emulated_mask_storeu_half
#define _mm512_set1_ps emulated_set1_ps
#define _mm512_set1_epi32 emulated_set1_epi32
#define _mm512_setr_epi32(...) ((__m512i)(lanes_i){__VA_ARGS__})
#define _mm512_fmadd_ps emulated_fmadd_ps
#define _mm512_max_ps emulated_max_ps
#define _mm512_min_ps emulated_min_ps
#define _mm512_abs_ps emulated_abs_ps
#define _mm512_reduce_max_ps emulated_reduce_max_ps
#define _mm512_reduce_add_ps emulated_reduce_add_ps
#define _mm512_reduce_add_epi32 emulated_reduce_add_epi32
#define _mm512_cvtss_f32(x) ((x)[0])
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_slli_epi32 emulated_slli_epi32
#define _mm512_srli_epi32 emulated_srli_epi32
#define _mm512_and_si512(a, b) ((__m512i)((lanes_l)(a) & (lanes_l)(b)))
#define _mm512_maskz_add_epi32 emulated_maskz_add_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtsepi32_epi8 emulated_cvtsepi32_epi8
#define _mm512_mask_mov_ps emulated_mask_mov_ps
#define _mm512_mask_mov_epi16 emulated_mask_mov_epi16
#define _mm512_cmpge_epi32_mask emulated_cmpge_epi32
#define _mm512_cmplt_epi32_mask emulated_cmplt_epi32
#define _mm512_cmpneq_ps_mask emulated_cmpneq_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, what) emulated_cmp_ps(a, b) /* only `>=` is asked for */
#define _mm512_permutex2var_ps emulated_permutex2var_ps
#define _mm512_permutexvar_epi16 emulated_permutexvar_epi16
#define _mm512_unpacklo_epi16 emulated_unpacklo_epi16
#define _mm512_unpackhi_epi16 emulated_unpackhi_epi16
#define _mm512_unpacklo_epi32 emulated_unpacklo_epi32
#define _mm512_unpackhi_epi32 emulated_unpackhi_epi32
#define _mm512_unpacklo_epi64 emulated_unpacklo_epi64
#define _mm512_unpackhi_epi64 emulated_unpackhi_epi64
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 emulated_shuffle_i32x4
#undef _mm512_extractf32x4_ps
#define _mm512_extractf32x4_ps emulated_extractf32x4_ps
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 emulated_extracti64x4_epi64
#define _mm512_castsi512_si256 emulated_castsi512_si256
#define _mm512_castsi512_ps(x) ((__m512)(x))
#define _mm512_castps_si512(x) ((__m512i)(x))
#define _mm512_castps512_ps128 emulated_castps512_ps128
#define _mm512_cvtneps_pbh emulated_cvtneps_pbh
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh
#define _mm512_dpbf16_ps emulated_dpbf16_ps
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32

#define __AVX512BF16__ 1
#define __AVX512VNNI__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
