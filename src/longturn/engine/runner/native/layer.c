/* All decoder layers in one parallel region: between small steps threads would fall asleep and have to be woken. */
#define _GNU_SOURCE
#include "cores.h"
#include "tiles.h"

/* norm, attention (rotary over the whole head), sum, norm, gated MLP, sum; the sums and the gate are operations of the
 * linears. Norms of queries and keys [dim] where a model has them. */
struct layer {
    struct linear qkv, out, gated, down;
    const float *before_attention, *before_mlp, *query_norm, *key_norm;
    float eps;
};

/* Spans whose rows are attended together; see attention.c. */
struct spans { struct span *all; int64_t n, rows; };

/* What is the same for all layers of a step: cos and sin [rows, dim] (sin with the sign of the rotation), the slot of
 * each row, all spans, those of the rows that are `asked` for (row numbers, one span each), the runs of both, rooms of
 * the attention for so many threads; `work` is for all rows of what longturn_width says. All spans go through the layers
 * from `begin` to before `end`, and through the others only the first of them, `whole`. */
struct step {
    struct spans spans, whole, last;
    int64_t begin, end;
    const int64_t *asked, *slots, *runs;
    const bf16 *cos, *sin;
    char *rooms;
    bf16 *work;
    struct shape shape;
    int threads;
};

static long most(long a, long b) { return a > b ? a : b; }

/* Numbers per row that a layer works in; the last of them are a room for linears, whose bytes they are. */
static long width_of(const struct layer *layer) {
    return 2 * layer->qkv.n_in + layer->qkv.n_out + 2 * layer->out.n_in + layer->down.n_in;
}

EXPORT int64_t longturn_width(const struct layer *layer) {
    long widest = most(layer->qkv.n_in, most(layer->out.n_in, layer->down.n_in));
    const struct linear linear = {.levels = layer->qkv.levels, .n_in = widest};
    return width_of(layer) + round_up(longturn_linear_room(&linear), sizeof(bf16)) / sizeof(bf16);
}

/* Rows `asked` of x [.., width], to its beginning; they come in order. */
static void take_rows(bf16 *x, const int64_t *asked, long n, long width) {
    for (long i = 0; i < n; i++) memmove(x + i * width, x + asked[i] * width, width * sizeof(bf16));
}

/* x [rows, hidden] through one layer, in place, of the rows of `spans`; keys and values go to their slots. After the
 * last layer x begins with the rows that are asked for: of the others only the keys and values are computed there. */
static void compute(const struct layer *layer, const struct step *step, const struct spans *spans, bf16 *x, bf16 *keys,
                    bf16 *values, int last) {
    long n = spans->rows, hidden = layer->qkv.n_in;
    if (n == 0) return;
    bf16 *normed = step->work, *middle = normed + n * hidden, *qkv = middle + n * hidden;
    bf16 *query = qkv + n * layer->qkv.n_out, *attended = query + n * layer->out.n_in;
    bf16 *gated = attended + n * layer->out.n_in;
    char *room = (char *)(step->work + n * width_of(layer));
    norm_rows(x, layer->before_attention, normed, n, hidden, layer->eps);
    linear_rows(&layer->qkv, normed, NULL, qkv, n, room);
    rotate_rows(qkv, layer->query_norm, layer->key_norm, layer->eps, step->cos, step->sin, query, keys, values,
                step->slots, n, &step->shape);
    if (last && step->last.rows < n) {
        spans = &step->last;
#pragma omp single
        {
            take_rows(x, step->asked, spans->rows, hidden);
            take_rows(query, step->asked, spans->rows, layer->out.n_in);
        }
        n = spans->rows;
    }
    if (n == 0) return;
    attend_spans(query, keys, values, attended, spans->all, spans->n, step->runs, &step->shape, step->rooms);
    linear_rows(&layer->out, attended, x, middle, n, room);
    norm_rows(middle, layer->before_mlp, normed, n, hidden, layer->eps);
    linear_rows(&layer->gated, normed, NULL, gated, n, room);
    linear_rows(&layer->down, gated, middle, x, n, room);
}

/* x [rows, hidden] through all layers, in place, whose pools lie one after the other: keys [slots, kv_heads, dim], and
 * so many numbers after their beginning the values; `stride` numbers from layer to layer. */
EXPORT void longturn_layers(const struct layer *layers, int64_t n_layers, const struct step *step, bf16 *x, bf16 *pool,
                            int64_t values, int64_t stride) {
    number_tasks(step->spans.all, step->spans.n, &step->shape, step->threads);
    if (step->last.n) number_tasks(step->last.all, step->last.n, &step->shape, step->threads);
    const struct cores cores = find_cores(step->threads);
#pragma omp parallel num_threads(step->threads)
    {
        hold_core(&cores, omp_get_thread_num());
        for (long i = 0; i < n_layers; i++) {
            const struct spans *spans = step->begin <= i && i < step->end ? &step->spans : &step->whole;
            compute(&layers[i], step, spans, x, pool + i * stride, pool + i * stride + values, i + 1 == n_layers);
        }
    }
    leave_core(&cores);
}
