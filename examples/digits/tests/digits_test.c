/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the digits example that need no other process: gradients against finite differences of a second,
 * plainer model in double; weights that do not depend on who computed what.
 */
#include "random.h"
#include "train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static digits_t digits;

/* ---- gradients ---- */

/* Where the weights of input i for output j of a layer are, and its biases: by the names of the tensors alone. */
static const net_tensor_t *tensor(const char *name)
{
    for (int i = 0; i < NET_TENSORS; i++)
        if (strcmp(net_tensors[i].name, name) == 0) return &net_tensors[i];
    fail_msg("there is no tensor %s", name);
    return NULL;
}

static double plain_loss(const double *w, const float *pixels, int label)
{
    static const int width[] = {PIXELS, NET_WIDTH_1, NET_WIDTH_2, CLASSES};
    double x[NET_WIDEST], y[NET_WIDEST], sum = 0;
    for (int i = 0; i < PIXELS; i++) x[i] = (double)pixels[i];
    for (int l = 0; l < NET_LAYERS; l++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d.weight", l + 1);
        const double *weights = w + tensor(name)->first;
        snprintf(name, sizeof name, "layer%d.bias", l + 1);
        const double *biases = w + tensor(name)->first;
        for (int j = 0; j < width[l + 1]; j++) {
            y[j] = biases[j];
            for (int i = 0; i < width[l]; i++) y[j] += x[i] * weights[i * width[l + 1] + j];
            if (l < NET_LAYERS - 1 && y[j] < 0) y[j] = 0;
        }
        memcpy(x, y, sizeof x);
    }
    for (int j = 0; j < CLASSES; j++) sum += exp(x[j]);
    return log(sum) - x[label];
}

static double difference(double *w, size_t i, const int *index, int count)
{
    const double by = 1e-6, kept = w[i];
    double up = 0, down = 0;
    for (int k = 0; k < count; k++) {
        w[i] = kept + by;
        up += plain_loss(w, digits.train.pixels[index[k]], digits.train.label[index[k]]);
        w[i] = kept - by;
        down += plain_loss(w, digits.train.pixels[index[k]], digits.train.label[index[k]]);
    }
    w[i] = kept;
    return (up - down) / (2 * by);
}

static void gradients_are_those_of_the_loss(void **state)
{
    const int index[] = {3, 77, 500, 1001};
    float *weights = calloc(NET_PARAMS, sizeof *weights), *gradient = calloc(NET_PARAMS, sizeof *gradient);
    double *w = calloc(NET_PARAMS, sizeof *w), loss = 0;
    uint64_t dice = 5;
    net_pass_t pass[4];
    (void)state;
    assert_true(weights && gradient && w);
    net_init(weights, 7);
    for (int i = 0; i < NET_PARAMS; i++) {
        if (weights[i] == 0) weights[i] = 0.1f * random_unit(&dice); /* biases, so that they matter */
        w[i] = (double)weights[i];
    }
    double told = (double)net_forward(weights, &digits.train, index, 4, pass);
    for (int layer = NET_LAYERS - 1; layer >= 0; layer--) net_backward(weights, layer, pass, 4, gradient);
    for (int k = 0; k < 4; k++) loss += plain_loss(w, digits.train.pixels[index[k]], digits.train.label[index[k]]);
    assert_true(fabs(told - loss) < 1e-4 * loss);
    for (int t = 0; t < NET_TENSORS; t++) {
        int different = 0;
        for (int k = 0; k < 60; k++) {
            size_t i = net_tensors[t].first + (size_t)random_below(&dice, net_tensors[t].count);
            double expected = difference(w, i, index, 4);
            different += expected != 0;
            if (fabs(expected - (double)gradient[i]) > 1e-4 * (1 + fabs(expected)))
                fail_msg("%s, parameter %zu: %g, not %g", net_tensors[t].name, i, (double)gradient[i], expected);
        }
        assert_true(different > 5);
    }
    free(weights);
    free(gradient);
    free(w);
}

/* ---- steps by ever changing ranks ---- */

static void average(train_t *t)
{
    for (int k = 0; k < NET_PARAMS; k++) t->gradient[k] /= train_samples(t);
    t->loss /= train_samples(t);
}

/* What all_reduce would do, with ranks in a random order; `without`: a rank whose share does not arrive. */
static void sum_shares(train_t *t, int nranks, int without, uint64_t *dice)
{
    double *gradient = calloc(NET_PARAMS, sizeof *gradient), loss = 0;
    uint8_t *used = calloc((size_t)t->images->count, 1);
    int start = (int)random_below(dice, (uint64_t)nranks);
    assert_true(gradient && used);
    for (int i = 0; i < nranks; i++) {
        int rank = (start + i) % nranks;
        if (rank == without) continue;
        train_compute(t, rank, nranks, NULL, NULL);
        for (int k = 0; k < NET_PARAMS; k++) gradient[k] += t->gradient[k];
        for (int k = 0; k < t->images->count; k++) used[k] = (uint8_t)(used[k] + t->used[k]);
        loss += t->loss;
    }
    memcpy(t->gradient, gradient, NET_PARAMS * sizeof *gradient);
    memcpy(t->used, used, (size_t)t->images->count);
    t->loss = loss;
    average(t);
    free(gradient);
    free(used);
}

static void weights_do_not_depend_on_the_ranks(void **state)
{
    train_t one, many;
    uint64_t dice = 11;
    const char *why = NULL;
    (void)state;
    assert_true(train_open(&one, &digits.train, 3, 1) && train_open(&many, &digits.train, 3, 1));
    while (one.state->step < train_steps(&one)) {
        int nranks = 1 + (int)random_below(&dice, 9);
        uint64_t before = train_hash(many.state);
        train_compute(&one, 0, 1, NULL, NULL);
        average(&one);
        assert_true(train_update(&one, &why));
        if (random_below(&dice, 4) == 0) { /* a rank is lost: the step fails, here after it was summed without it */
            span_t gap = shards_of_rank(many.images->count,
                                        (int)(many.state->step % (uint64_t)shards_steps(many.images->count)),
                                        nranks - 1, nranks);
            sum_shares(&many, nranks, nranks - 1, &dice);
            if (gap.end > gap.first) assert_false(train_update(&many, &why));
            assert_true(train_hash(many.state) == before);
            nranks = nranks > 1 ? nranks - 1 : 1;
        }
        sum_shares(&many, nranks, -1, &dice);
        assert_true(train_update(&many, &why));
        assert_true(train_hash(one.state) == train_hash(many.state));
        assert_true(one.loss == many.loss);
    }
    assert_true(one.state->samples == (uint64_t)3 * (uint64_t)digits.train.count);
    assert_true(net_right(one.state->weights, &digits.test, 0, digits.test.count) * 10 > digits.test.count * 8);
    train_close(&one);
    train_close(&many);
}

typedef struct {
    const train_t *train;
    int count;
    double *was;
} seen_t;

static void see(void *arg, const net_tensor_t *tensor)
{
    seen_t *s = arg;
    assert_ptr_equal(tensor, &net_tensors[s->count++]);
    memcpy(s->was + tensor->first, s->train->gradient + tensor->first, tensor->count * sizeof *s->was);
}

/* Who sends a tensor when it is told to be ready sends what it is in the end. */
static void tensors_are_ready_in_backward_order(void **state)
{
    train_t t;
    seen_t s = {.train = &t, .was = calloc(NET_PARAMS, sizeof *s.was)};
    (void)state;
    assert_non_null(s.was);
    assert_true(train_open(&t, &digits.train, 1, 1));
    memset(t.gradient, 0x55, NET_PARAMS * sizeof *t.gradient); /* of another step */
    train_compute(&t, 1, 3, see, &s);
    assert_int_equal(s.count, NET_TENSORS);
    assert_memory_equal(s.was, t.gradient, NET_PARAMS * sizeof *s.was);
    free(s.was);
    train_close(&t);
}

/* What makes the sums exact: no bits below 2^-32. */
static void gradients_lie_on_the_grid(void **state)
{
    train_t t;
    int below = 0;
    (void)state;
    assert_true(train_open(&t, &digits.train, 1, 1));
    train_compute(&t, 0, 1, NULL, NULL);
    for (int i = 0; i < NET_PARAMS; i++)
        below += t.gradient[i] * 4294967296.0 != rint(t.gradient[i] * 4294967296.0);
    assert_int_equal(below, 0);
    train_close(&t);
}

static void nonsense_changes_nothing(void **state)
{
    train_t t;
    const char *why = "";
    (void)state;
    assert_true(train_open(&t, &digits.train, 1, 1));
    train_compute(&t, 0, 1, NULL, NULL);
    const uint64_t before = train_hash(t.state);
    t.gradient[100] = NAN;
    assert_false(train_update(&t, &why));
    assert_non_null(strstr(why, "sensible"));
    assert_true(train_hash(t.state) == before);
    train_close(&t);
}

int main(void)
{
    char message[400];
    alarm(110);
    if (!digits_load(&digits, DIGITS_DATA, message, sizeof message)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_the_loss),
        cmocka_unit_test(weights_do_not_depend_on_the_ranks),
        cmocka_unit_test(tensors_are_ready_in_backward_order),
        cmocka_unit_test(gradients_lie_on_the_grid),
        cmocka_unit_test(nonsense_changes_nothing),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    digits_free(&digits);
    return failed;
}
