/* A decoder layer in one parallel region: between small steps threads would fall asleep and have to be woken. */
#include "tiles.h"

/* norm, attention (rotary over the whole head), sum, norm, gated MLP, sum; the sums and the gate are operations of the
 * linears. Norms of queries and keys [dim] where a model has them. */
struct layer {
    struct linear qkv, out, gate, up, down;
    const float *before_attention, *before_mlp, *query_norm, *key_norm;
    float eps;
};

/* What is the same for all layers of a step: n rows, cos and sin [n, dim] (sin with the sign of the rotation), the
 * slot of each row, the spans and their runs, rooms of the attention for so many threads; `work` is for n rows of what
 * longturn_width says. */
struct step {
    int64_t n, n_spans;
    const bf16 *cos, *sin;
    const int64_t *slots, *runs;
    struct span *spans;
    char *rooms;
    bf16 *work;
    struct shape shape;
    int threads;
};

/* Numbers per row that a layer works in. */
EXPORT int64_t longturn_width(const struct layer *layer) {
    return 2 * layer->qkv.n_in + layer->qkv.n_out + 2 * layer->out.n_in + 2 * layer->down.n_in;
}

/* x [n, hidden] to out [n, hidden]; keys and values of its tokens go to their slots of this layer's pool. */
EXPORT void longturn_layer(const struct layer *layer, const struct step *step, const bf16 *x, bf16 *keys, bf16 *values,
                           bf16 *out) {
    long n = step->n, hidden = layer->qkv.n_in;
    bf16 *normed = step->work, *middle = normed + n * hidden, *qkv = middle + n * hidden;
    bf16 *query = qkv + n * layer->qkv.n_out, *attended = query + n * layer->out.n_in;
    bf16 *gate = attended + n * layer->out.n_in, *both = gate + n * layer->down.n_in;
    number_tasks(step->spans, step->n_spans, &step->shape);
#pragma omp parallel num_threads(step->threads)
    {
        norm_rows(x, layer->before_attention, normed, n, hidden, layer->eps);
        linear_rows(&layer->qkv, normed, NULL, qkv, n);
        rotate_rows(qkv, layer->query_norm, layer->key_norm, layer->eps, step->cos, step->sin, query, keys, values,
                    step->slots, n, &step->shape);
        attend_spans(query, keys, values, attended, step->spans, step->n_spans, step->runs, &step->shape, step->rooms);
        linear_rows(&layer->out, attended, x, middle, n);
        norm_rows(middle, layer->before_mlp, normed, n, hidden, layer->eps);
        linear_rows(&layer->gate, normed, NULL, gate, n);
        linear_rows(&layer->up, normed, gate, both, n);
        linear_rows(&layer->down, both, middle, out, n);
    }
}
