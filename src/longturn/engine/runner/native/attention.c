/* Attention over the pool.
 *
 * What a row gets depends on its own query and on the keys it sees, in the order of their positions, and on nothing
 * else: not on the rows beside it, on how many there are, nor on where in the pool a key lies. So the bits are the same
 * in a prompt and in an answer, in chunks and behind a cached prefix.
 *
 * Scores are computed transposed, [keys, queries], so that a vector holds one key's scores for 16 queries and the
 * softmax needs no sums across a vector. Online softmax over blocks of keys: FlashAttention (Dao et al. 2022).
 */
#include "attention.h"

enum {
    ROWS = 256, /* most rows of queries for which a block of keys is packed once */
    UNEVEN = 10, /* percent of the time that threads may wait for the last of them */
};
static const int32_t NO_ROW = INT32_MAX; /* position of what only fills up a tile: nothing has to be hidden from it */

/* Rows of the keys and values that come next. A few are fetched with every product of tiles: if all were read when it is
 * their turn, that took up to a quarter of the time (few queries, measured), since those of one head lie too far apart
 * for the CPU to guess. */
struct coming { const bf16 *rows[2 * KEYS]; long n, next, at_a_time, dim; };

static inline __attribute__((always_inline)) void fetch(struct coming *coming) {
    for (long i = 0; i < coming->at_a_time && coming->next < coming->n; i++) {
        const bf16 *row = coming->rows[coming->next++];
        for (long at = 0; at < coming->dim; at += 32) _mm_prefetch((const char *)(row + at), _MM_HINT_T1);
    }
}

/* ---- Products of tiles: c [16][16] (float) += a [16][32] times b [16 pairs][16][2]. ---- */

#ifdef __AMX_BF16__
/* Keys in a product. */
enum { AT_ONCE = 2 * LANES };

/* Scores [n][16] of n keys [n][depth] for one tile of queries [depth / 2][16][2]; n is a multiple of 32. */
static void score(float *scores, const bf16 *keys, const bf16 *queries, long n, long depth, struct coming *coming) {
    written();
    for (long key = 0; key < n; key += 2 * LANES) {
        _tile_zero(0);
        _tile_zero(1);
        for (long at = 0; at < depth; at += DEPTH) {
            fetch(coming);
            _tile_loadd(6, queries + at * LANES, 64);
            _tile_loadd(2, keys + key * depth + at, depth * 2);
            _tile_dpbf16ps(0, 2, 6);
            _tile_loadd(3, keys + (key + LANES) * depth + at, depth * 2);
            _tile_dpbf16ps(1, 3, 6);
        }
        _tile_stored(0, scores + key * LANES, 64);
        _tile_stored(1, scores + (key + LANES) * LANES, 64);
    }
}

/* sums [depth][16] += values [n / 32][depth][32] times shares [n / 2][16][2]; n is a multiple of 32. */
static void weigh(float *sums, const bf16 *values, const bf16 *shares, long n, long depth, struct coming *coming) {
    written();
    for (long at = 0; at < depth; at += 2 * LANES) {
        float *c = sums + at * LANES;
        _tile_loadd(0, c, 64);
        _tile_loadd(1, c + LANES * LANES, 64);
        for (long key = 0; key < n; key += DEPTH) {
            const bf16 *a = values + key * depth + at * DEPTH;
            fetch(coming);
            _tile_loadd(6, shares + key * LANES, 64);
            _tile_loadd(2, a, 64);
            _tile_dpbf16ps(0, 2, 6);
            _tile_loadd(3, a + LANES * DEPTH, 64);
            _tile_dpbf16ps(1, 3, 6);
        }
        _tile_stored(0, c, 64);
        _tile_stored(1, c + LANES * LANES, 64);
    }
}
#else
enum { AT_ONCE = 8 };

/* c [8][16] += 8 rows of a, `stride` apart, times b. */
static inline __attribute__((always_inline)) void product(__m512 c[8], const bf16 *a, long stride, const bf16 *b,
                                                          struct coming *coming) {
    fetch(coming);
    for (int pair = 0; pair < DEPTH / 2; pair++) {
        __m512bh lanes = (__m512bh)_mm512_loadu_si512(b + pair * 2 * LANES);
        for (int i = 0; i < 8; i++) {
            int32_t both;
            memcpy(&both, a + i * stride + pair * 2, 4);
            c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)_mm512_set1_epi32(both), lanes);
        }
    }
}

static inline void score(float *scores, const bf16 *keys, const bf16 *queries, long n, long depth,
                         struct coming *coming) {
    for (long key = 0; key < n; key += 8) {
        __m512 c[8];
        for (int i = 0; i < 8; i++) c[i] = _mm512_setzero_ps();
        for (long at = 0; at < depth; at += DEPTH)
            product(c, keys + key * depth + at, depth, queries + at * LANES, coming);
        for (int i = 0; i < 8; i++) _mm512_store_ps(scores + (key + i) * LANES, c[i]);
    }
}

static inline void weigh(float *sums, const bf16 *values, const bf16 *shares, long n, long depth,
                         struct coming *coming) {
    for (long at = 0; at < depth; at += 8) {
        __m512 c[8];
        for (int i = 0; i < 8; i++) c[i] = _mm512_load_ps(sums + (at + i) * LANES);
        for (long key = 0; key < n; key += DEPTH)
            product(c, values + key * depth + at * DEPTH, DEPTH, shares + key * LANES, coming);
        for (int i = 0; i < 8; i++) _mm512_store_ps(sums + (at + i) * LANES, c[i]);
    }
}
#endif

/* ---- Blocks of queries and keys. ---- */

/* What one thread works in. depth: dim, filled up with zeros to a multiple of 32. */
struct room {
    bf16 *queries; /* [ROWS / 16][depth / 2][16][2] */
    bf16 *keys;    /* [KEYS][depth] */
    bf16 *values;  /* [KEYS / 32][depth][32] */
    bf16 *shares;  /* [KEYS / 2][16][2] */
    float *scores; /* [KEYS][16] */
    float *sums;   /* [ROWS / 16][depth][16] */
    float *most;   /* [ROWS]: greatest score so far */
    float *total;  /* [ROWS]: sum of shares so far */
    int32_t *at;   /* [ROWS]: position of each row */
};

static size_t room_bytes(long depth) {
    return ROWS * depth * 6 + 2 * KEYS * depth * 2 + KEYS * LANES * 6 + ROWS * 12;
}

static struct room divide(char *all, long depth) {
    struct room room;
    room.queries = (bf16 *)all, all += ROWS * depth * 2;
    room.keys = (bf16 *)all, all += KEYS * depth * 2;
    room.values = (bf16 *)all, all += KEYS * depth * 2;
    room.shares = (bf16 *)all, all += KEYS * LANES * 2;
    room.scores = (float *)all, all += KEYS * LANES * 4;
    room.sums = (float *)all, all += ROWS * depth * 4;
    room.most = (float *)all, all += ROWS * 4;
    room.total = (float *)all, all += ROWS * 4;
    room.at = (int32_t *)all;
    return room;
}

/* Rows first .. first + n of a span's queries for one kv head; a row is one head of one token. Returns their tiles. */
static long take_queries(struct room *room, const struct span *span, const struct shape *shape, const bf16 *query,
                         long kv_head, long first, long n, long depth) {
    long group = shape->heads / shape->kv_heads, tiles = round_up(n, LANES) / LANES;
    for (long tile = 0; tile < tiles; tile++) {
        const bf16 *rows[LANES];
        for (long i = 0; i < LANES; i++) {
            long row = tile * LANES + i, token = (first + row) / group, head = (first + row) % group;
            int there = row < n;
            rows[i] = there ? query + (span->row + token) * shape->query_stride + (kv_head * group + head) * shape->dim
                            : NULL;
            room->at[row] = there ? (int32_t)(span->start + token) : NO_ROW;
        }
        for (long at = 0; at < depth; at += DEPTH) {
            __m512i r[LANES];
            for (long i = 0; i < LANES; i++)
                r[i] = rows[i] ? piece_of(rows[i], at, shape->dim) : _mm512_setzero_si512();
            transpose(r);
            bf16 *to = room->queries + (tile * depth + at) * LANES;
            for (long i = 0; i < LANES; i++) _mm512_store_si512(to + i * 2 * LANES, r[i]);
        }
    }
    for (long row = 0; row < tiles * LANES; row++) room->most[row] = -INFINITY, room->total[row] = 0;
    memset(room->sums, 0, tiles * LANES * depth * sizeof(float));
    return tiles;
}

/* The next n keys and values of a kv head, filled up with zeros to `filled` (a multiple of 32). */
static void take_keys(struct room *room, struct reader *reader, const bf16 *keys, const bf16 *values, long n,
                      long filled, const struct shape *shape, long depth) {
    static const bf16 nothing[256];
    const bf16 *rows[KEYS];
    for (long i = 0; i < filled; i++) {
        if (i >= n) {
            rows[i] = nothing;
            memset(room->keys + i * depth, 0, depth * 2);
            continue;
        }
        int64_t slot = next_slot(reader);
        const bf16 *key = keys + slot * shape->kv_stride;
        rows[i] = values + slot * shape->kv_stride;
        for (long at = 0; at < depth; at += DEPTH)
            _mm512_store_si512(room->keys + i * depth + at, piece_of(key, at, shape->dim));
    }
    for (long key = 0; key < filled; key += DEPTH)
        for (long at = 0; at < depth; at += DEPTH) {
            __m512i even[LANES], odd[LANES];
            for (long i = 0; i < LANES; i++) even[i] = piece_of(rows[key + 2 * i], at, shape->dim);
            transpose(even);
            for (long i = 0; i < LANES; i++) odd[i] = piece_of(rows[key + 2 * i + 1], at, shape->dim);
            transpose(odd);
            bf16 *to = room->values + key * depth + at * DEPTH;
            for (long i = 0; i < LANES; i++, to += 2 * DEPTH) {
                _mm512_store_si512(to, _mm512_mask_mov_epi16(even[i], 0xaaaaaaaa, _mm512_slli_epi32(odd[i], 16)));
                _mm512_store_si512(to + DEPTH, _mm512_mask_mov_epi16(_mm512_srli_epi32(even[i], 16), 0xaaaaaaaa, odd[i]));
            }
        }
}

/* The n keys and values after those that are taken, for so many products. */
static void look_ahead(struct coming *coming, struct reader reader, const bf16 *keys, const bf16 *values, long n,
                       long products, const struct shape *shape) {
    coming->n = 2 * n, coming->next = 0, coming->dim = shape->dim;
    coming->at_a_time = round_up(coming->n, products) / products;
    for (long i = 0; i < n; i++) {
        int64_t slot = next_slot(&reader);
        coming->rows[2 * i] = keys + slot * shape->kv_stride;
        coming->rows[2 * i + 1] = values + slot * shape->kv_stride;
    }
}

/* One tile of queries over the block of n keys whose first is at `position`. Not inlined: there the compiler would not
 * keep the sums of products in registers. */
static __attribute__((noinline)) void attend_tile(struct room *room, long tile, long position, long n, float scale,
                                                  long depth, struct coming *coming) {
    static const uint16_t PAIRED[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i paired = _mm512_loadu_si512(PAIRED);
    const __m512 log_scale = _mm512_set1_ps(scale * 1.4426950408889634f), nothing = _mm512_set1_ps(-INFINITY);
    float *scores = room->scores, *sums = room->sums + tile * depth * LANES;
    const __m512i at = _mm512_load_si512(room->at + tile * LANES);
    score(scores, room->keys, room->queries + tile * depth * LANES, n, depth, coming);

    if (_mm512_cmplt_epi32_mask(at, _mm512_set1_epi32((int32_t)(position + n - 1)))) /* some see less than all */
        for (long key = 0; key < n; key++) {
            __mmask16 seen = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32((int32_t)(position + key)));
            _mm512_store_ps(scores + key * LANES, _mm512_mask_mov_ps(nothing, seen, _mm512_load_ps(scores + key * LANES)));
        }
    __m512 greatest[4] = {nothing, nothing, nothing, nothing};
    for (long key = 0; key < n; key += 4)
        for (int i = 0; i < 4; i++) greatest[i] = _mm512_max_ps(greatest[i], _mm512_load_ps(scores + (key + i) * LANES));
    __m512 before = _mm512_load_ps(room->most + tile * LANES);
    __m512 most = _mm512_max_ps(_mm512_max_ps(greatest[0], greatest[1]), _mm512_max_ps(greatest[2], greatest[3]));
    most = _mm512_max_ps(before, most);
    _mm512_store_ps(room->most + tile * LANES, most);
    __m512 base = _mm512_mul_ps(most, log_scale);

    __m512 total[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (long key = 0; key < n; key += 4) {
        __m512 share[4];
        for (int i = 0; i < 4; i++) {
            share[i] = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + (key + i) * LANES), log_scale, base));
            total[i] = _mm512_add_ps(total[i], share[i]);
        }
        for (int i = 0; i < 4; i += 2) {
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(share[i + 1], share[i]);
            _mm512_store_si512(room->shares + (key + i) * LANES, _mm512_permutexvar_epi16(paired, both));
        }
    }
    __m512 sum = _mm512_add_ps(_mm512_add_ps(total[0], total[1]), _mm512_add_ps(total[2], total[3]));
    /* Exactly 1 where the greatest is what it was, whatever it is for the rows beside. */
    __m512 kept = power_of_two(_mm512_mul_ps(_mm512_sub_ps(before, most), log_scale));
    _mm512_store_ps(room->total + tile * LANES, _mm512_fmadd_ps(_mm512_load_ps(room->total + tile * LANES), kept, sum));
    if (_mm512_cmpneq_ps_mask(kept, _mm512_set1_ps(1.0f)))
        for (long i = 0; i < depth; i++)
            _mm512_store_ps(sums + i * LANES, _mm512_mul_ps(_mm512_load_ps(sums + i * LANES), kept));
    weigh(sums, room->values, room->shares, n, depth, coming);
}

/* Write the results of n rows, as take_queries numbered them. */
static void give(const struct room *room, const struct span *span, const struct shape *shape, bf16 *out, long kv_head,
                 long first, long n, long depth) {
    long group = shape->heads / shape->kv_heads;
    for (long tile = 0; tile * LANES < n; tile++) {
        __m512 total = _mm512_load_ps(room->total + tile * LANES);
        for (long at = 0; at < shape->dim; at += LANES) {
            __m512i r[LANES];
            for (long i = 0; i < LANES; i++)
                r[i] = _mm512_castps_si512(
                    _mm512_div_ps(_mm512_load_ps(room->sums + (tile * depth + at + i) * LANES), total));
            transpose(r);
            for (long i = 0; i < LANES && tile * LANES + i < n; i++) {
                long row = first + tile * LANES + i;
                bf16 *to = out + ((span->row + row / group) * shape->heads + kv_head * group + row % group) * shape->dim;
                _mm256_mask_storeu_epi16(to + at, first_lanes(shape->dim - at),
                                         (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(r[i])));
            }
        }
    }
}

/* One block of a span's rows, for one kv head. */
static void attend_rows(struct room *room, const struct span *span, const struct shape *shape, const int64_t *runs,
                        const bf16 *query, const bf16 *keys, const bf16 *values, bf16 *out, long kv_head, long first) {
    long group = shape->heads / shape->kv_heads, depth = round_up(shape->dim, DEPTH);
    long n = least(span->block, span->n * group - first);
    keys += kv_head * shape->dim, values += kv_head * shape->dim;
    struct reader reader = {runs + 2 * span->runs, runs[2 * span->runs]};
    struct coming coming;
    long tiles = take_queries(room, span, shape, query, kv_head, first, n, depth);
    long end = span->start + (first + n - 1) / group + 1; /* keys that the last row sees */
    for (long position = 0; position < end; position += KEYS) {
        long there = least(KEYS, end - position), filled = round_up(there, DEPTH);
        take_keys(room, &reader, keys, values, there, filled, shape, depth);
        look_ahead(&coming, reader, keys, values, least(KEYS, end - position - there),
                   tiles * 2 * (filled / AT_ONCE) * (depth / DEPTH), shape);
        for (long tile = 0; tile < tiles; tile++) {
            long last = least((tile + 1) * LANES, n) - 1, seen = room->at[last] + 1 - position;
            if (seen > 0)
                attend_tile(room, tile, position, least(filled, round_up(seen, DEPTH)), shape->scale, depth, &coming);
        }
    }
    give(room, span, shape, out, kv_head, first, n, depth);
}

/* Bytes that each thread works in. */
EXPORT int64_t longturn_room(int64_t dim) { return round_up(room_bytes(round_up(dim, DEPTH)), 64); }

static long tasks_of(const struct span *span, const struct shape *shape) {
    if (span->together) return round_up(shape->kv_heads, span->together) / span->together;
    return shape->kv_heads * (round_up(span->n * (shape->heads / shape->kv_heads), span->block) / span->block);
}

/* Rows of a task, such that all threads have about as much to do: as many as can be, since for each block of them the
 * keys are packed anew. */
static long block_of(long rows, long kv_heads, int threads) {
    for (long blocks = round_up(rows, ROWS) / ROWS;; blocks++) {
        long block = round_up(round_up(rows, blocks) / blocks, LANES), tasks = kv_heads * (round_up(rows, block) / block);
        if (block == LANES || round_up(tasks, threads) * 100 <= tasks * (100 + UNEVEN)) return block;
    }
}

void number_tasks(struct span *spans, long n_spans, const struct shape *shape, int threads) {
    long n_tasks = 0, together = n_spans >= 2 * threads ? least(MOST_HEADS, shape->kv_heads) : 1;
    for (long i = 0; i < n_spans; i++) {
        spans[i].task = n_tasks;
        spans[i].together = few_rows(&spans[i], shape) ? together : 0;
        spans[i].block = block_of(spans[i].n * (shape->heads / shape->kv_heads), shape->kv_heads, threads);
        n_tasks += tasks_of(&spans[i], shape);
    }
}

/* Some kv heads of a span of few rows. */
static void attend_heads(const struct span *span, const struct shape *shape, const int64_t *runs, const bf16 *query,
                         const bf16 *keys, const bf16 *values, bf16 *out, long kv_head) {
    long group = shape->heads / shape->kv_heads, at = kv_head * group * shape->dim;
    struct reader reader = {runs + 2 * span->runs, runs[2 * span->runs]};
    attend_few(group, least(span->together, shape->kv_heads - kv_head), query + span->row * shape->query_stride + at,
               out + span->row * shape->heads * shape->dim + at, keys + kv_head * shape->dim,
               values + kv_head * shape->dim, reader, span->start + 1, shape);
}

/* Attention of all spans: query [rows, heads, dim] with `query_stride` numbers from row to row, keys and values
 * [slots, kv_heads, dim] with `kv_stride` from slot to slot, to out [rows, heads, dim]; rooms: one after the other,
 * for every thread, aligned to 64 bytes. */
void attend_spans(const bf16 *query, const bf16 *keys, const bf16 *values, bf16 *out, const struct span *spans,
                  long n_spans, const int64_t *runs, const struct shape *shape, char *rooms) {
    long n_tasks = spans[n_spans - 1].task + tasks_of(&spans[n_spans - 1], shape);
    struct room room = divide(rooms + longturn_room(shape->dim) * omp_get_thread_num(), round_up(shape->dim, DEPTH));
    tiles_on(LANES);
    /* From the end: a prompt's last rows see most. */
#pragma omp for schedule(dynamic)
    for (long task = n_tasks - 1; task >= 0; task--) {
        long i = 0;
        while (i + 1 < n_spans && spans[i + 1].task <= task) i++;
        const struct span *span = &spans[i];
        long number = task - span->task;
        if (span->together)
            attend_heads(span, shape, runs, query, keys, values, out, number * span->together);
        else
            attend_rows(&room, span, shape, runs, query, keys, values, out, number % shape->kv_heads,
                        number / shape->kv_heads * span->block);
    }
    tiles_off();
}

EXPORT void longturn_attend(const bf16 *query, const bf16 *keys, const bf16 *values, bf16 *out, struct span *spans,
                            int64_t n_spans, const int64_t *runs, const struct shape *shape, char *rooms,
                            int threads) {
    number_tasks(spans, n_spans, shape, threads);
#pragma omp parallel num_threads(threads)
    attend_spans(query, keys, values, out, spans, n_spans, runs, shape, rooms);
}
