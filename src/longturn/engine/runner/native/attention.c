/* Attention over the pool.
 *
 * What a row gets depends on its own query and on the keys it sees, in the order of their positions, and on nothing
 * else: not on the rows beside it, on how many there are, nor on where in the pool a key lies. So the bits are the same
 * in a prompt and in an answer, in chunks and behind a cached prefix.
 *
 * Scores are computed transposed, [keys, queries], so that a vector holds one key's scores for some queries and the
 * softmax needs no sums across a vector. Online softmax over blocks of keys: FlashAttention (Dao et al. 2022).
 */
#include "products.h"

enum {
    ROWS = 256, /* most rows of queries for which a block of keys is packed once */
    UNEVEN = 10, /* percent of the time that threads may wait for the last of them */
};
static const int32_t NO_ROW = INT32_MAX; /* position of what only fills up a tile: nothing has to be hidden from it */

/* ---- Blocks of queries and keys. ---- */

/* What one thread works in. depth: dim, filled up with zeros to a multiple of DEPTH. */
struct room {
    number *queries; /* [ROWS / QUERIES][depth][QUERIES], in pairs where products are of pairs */
    number *keys;    /* [KEYS][depth] */
    number *values;  /* [KEYS][depth], in the order of put_values */
    number *shares;  /* [KEYS][QUERIES], in pairs as well */
    float *scores;   /* [KEYS][QUERIES] */
    float *sums;     /* [ROWS / QUERIES][depth][QUERIES] */
    float *most;     /* [ROWS]: greatest score so far */
    float *total;    /* [ROWS]: sum of shares so far */
    int32_t *at;     /* [ROWS]: position of each row */
};

static size_t room_bytes(long depth) {
    size_t numbers = (ROWS + 2 * KEYS) * depth + KEYS * QUERIES, floats = ROWS * depth + KEYS * QUERIES + 3 * ROWS;
    return numbers * sizeof(number) + floats * sizeof(float);
}

static struct room divide(char *all, long depth) {
    struct room room;
    room.queries = (number *)all, all += ROWS * depth * sizeof(number);
    room.keys = (number *)all, all += KEYS * depth * sizeof(number);
    room.values = (number *)all, all += KEYS * depth * sizeof(number);
    room.shares = (number *)all, all += KEYS * QUERIES * sizeof(number);
    room.scores = (float *)all, all += KEYS * QUERIES * 4;
    room.sums = (float *)all, all += ROWS * depth * 4;
    room.most = (float *)all, all += ROWS * 4;
    room.total = (float *)all, all += ROWS * 4;
    room.at = (int32_t *)all;
    return room;
}

/* Rows first .. first + n of a span's queries for one kv head; a row is one head of one token. Returns their tiles. */
static long take_queries(struct room *room, const struct span *span, const struct shape *shape, const bf16 *query,
                         long kv_head, long first, long n, long depth) {
    long group = shape->heads / shape->kv_heads, tiles = round_up(n, QUERIES) / QUERIES;
    for (long tile = 0; tile < tiles; tile++) {
        const bf16 *rows[QUERIES];
        for (long i = 0; i < QUERIES; i++) {
            long row = tile * QUERIES + i, token = (first + row) / group, head = (first + row) % group;
            int there = row < n;
            rows[i] = there ? query + (span->row + token) * shape->query_stride + (kv_head * group + head) * shape->dim
                            : NULL;
            room->at[row] = there ? (int32_t)(span->start + token) : NO_ROW;
        }
        for (long lane = 0; lane < QUERIES; lane += LANES)
            for (long at = 0; at < depth; at += DEPTH) {
                words r[LANES];
                for (long i = 0; i < LANES; i++)
                    r[i] = rows[lane + i] ? piece_of(rows[lane + i], at, shape->dim) : splat_word(0);
                transpose(r);
                number *to = room->queries + (tile * depth + at) * QUERIES + lane;
                for (long i = 0; i < LANES; i++) put_pairs(to + i * 2 * QUERIES, r[i]);
            }
    }
    for (long row = 0; row < tiles * QUERIES; row++) room->most[row] = -INFINITY, room->total[row] = 0;
    memset(room->sums, 0, tiles * QUERIES * depth * sizeof(float));
    return tiles;
}

/* The next n keys and values of a kv head, filled up with zeros to `filled`. */
static void take_keys(struct room *room, struct reader *reader, const bf16 *keys, const bf16 *values, long n,
                      long filled, const struct shape *shape, long depth) {
    static const bf16 nothing[256];
    const bf16 *rows[KEYS];
    for (long i = 0; i < filled; i++) {
        if (i >= n) {
            rows[i] = nothing;
            memset(room->keys + i * depth, 0, depth * sizeof(number));
            continue;
        }
        int64_t slot = next_slot(reader);
        const bf16 *key = keys + slot * shape->kv_stride;
        rows[i] = values + slot * shape->kv_stride;
        for (long at = 0; at < depth; at += DEPTH)
            put_row(room->keys + i * depth + at, piece_of(key, at, shape->dim));
    }
    put_values(room->values, rows, filled, shape, depth);
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

/* Scores of LANES queries, from the one in `lane` of a tile on, to shares of the n keys whose first is at `position`; what
 * was summed before is scaled down where the greatest has grown. */
static inline __attribute__((always_inline)) void share_out(struct room *room, long tile, long lane, long position,
                                                            long n, float scale, long depth) {
    const floats log_scale = splat(scale * 1.4426950408889634f), nothing = splat(-INFINITY);
    float *scores = room->scores + lane, *sums = room->sums + tile * depth * QUERIES + lane;
    float *greatest_yet = room->most + tile * QUERIES + lane, *total_yet = room->total + tile * QUERIES + lane;
    const words at = load_words(room->at + tile * QUERIES + lane);

    if (any_less(at, (int32_t)(position + n - 1))) /* some see less than all */
        for (long key = 0; key < n; key++) {
            floats seen = where_at_least(at, (int32_t)(position + key), load(scores + key * QUERIES), nothing);
            store(scores + key * QUERIES, seen);
        }
    floats greatest[4] = {nothing, nothing, nothing, nothing};
    for (long key = 0; key < n; key += 4)
        for (int i = 0; i < 4; i++) greatest[i] = greater_of(greatest[i], load(scores + (key + i) * QUERIES));
    floats before = load(greatest_yet);
    floats most = greater_of(greater_of(greatest[0], greatest[1]), greater_of(greatest[2], greatest[3]));
    most = greater_of(before, most);
    store(greatest_yet, most);
    floats base = most * log_scale;

    floats total[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (long key = 0; key < n; key += 4) {
        floats share[4];
        for (int i = 0; i < 4; i++) {
            share[i] = power_of_two(fused(load(scores + (key + i) * QUERIES), log_scale, -base));
            total[i] = total[i] + share[i];
        }
        for (int i = 0; i < 4; i += 2) put_two(room->shares + (key + i) * QUERIES + lane, share[i], share[i + 1]);
    }
    floats sum = (total[0] + total[1]) + (total[2] + total[3]);
    /* Exactly 1 where the greatest is what it was, whatever it is for the rows beside. */
    floats kept = power_of_two((before - most) * log_scale);
    store(total_yet, fused(load(total_yet), kept, sum));
    if (any_differs(kept, 1.0f))
        for (long i = 0; i < depth; i++) store(sums + i * QUERIES, load(sums + i * QUERIES) * kept);
}

/* One tile of queries over the block of n keys whose first is at `position`. Not inlined: there the compiler would not
 * keep the sums of products in registers. */
static __attribute__((noinline)) void attend_tile(struct room *room, long tile, long position, long n, float scale,
                                                  long depth, struct coming *coming) {
    long first = tile * depth * QUERIES;
    score(room->scores, room->keys, room->queries + first, n, depth, coming);
    for (long lane = 0; lane < QUERIES; lane += LANES) share_out(room, tile, lane, position, n, scale, depth);
    weigh(room->sums + first, room->values, room->shares, n, depth, coming);
}

/* Write the results of n rows, as take_queries numbered them. */
static void give(const struct room *room, const struct span *span, const struct shape *shape, bf16 *out, long kv_head,
                 long first, long n, long depth) {
    long group = shape->heads / shape->kv_heads;
    for (long start = 0; start < n; start += LANES) {
        long tile = start / QUERIES, lane = start % QUERIES;
        const float *sums = room->sums + tile * depth * QUERIES + lane;
        floats total = load(room->total + start);
        for (long at = 0; at < shape->dim; at += LANES) {
            words r[LANES];
            for (long i = 0; i < LANES; i++) r[i] = as_words(load(sums + (at + i) * QUERIES) / total);
            transpose(r);
            for (long i = 0; i < LANES && start + i < n; i++) {
                long row = first + start + i;
                bf16 *to = out + ((span->row + row / group) * shape->heads + kv_head * group + row % group) * shape->dim;
                put_some_halves(to + at, narrowed(as_floats(r[i])), shape->dim - at);
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
            long last = least((tile + 1) * QUERIES, n) - 1, seen = room->at[last] + 1 - position;
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
        long block = round_up(round_up(rows, blocks) / blocks, QUERIES), tasks = kv_heads * (round_up(rows, block) / block);
        if (block == QUERIES || round_up(tasks, threads) * 100 <= tasks * (100 + UNEVEN)) return block;
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
