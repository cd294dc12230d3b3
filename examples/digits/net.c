/* SPDX-License-Identifier: Apache-2.0
 *
 * See net.h. A layer's weights are stored input by input, so that the inner loops run over adjacent outputs; inputs
 * that are zero (white pixels, units that ReLU switched off) are skipped.
 */
#include "net.h"

#include "random.h"

#include <math.h>
#include <string.h>

typedef struct {
    int in, out;
    size_t weights, biases; /* where they begin */
} layer_t;

#define W0 0
#define B0 (W0 + PIXELS * NET_WIDTH_1)
#define W1 (B0 + NET_WIDTH_1)
#define B1 (W1 + NET_WIDTH_1 * NET_WIDTH_2)
#define W2 (B1 + NET_WIDTH_2)
#define B2 (W2 + NET_WIDTH_2 * CLASSES)

static const layer_t layers[NET_LAYERS] = {
    {PIXELS, NET_WIDTH_1, W0, B0}, {NET_WIDTH_1, NET_WIDTH_2, W1, B1}, {NET_WIDTH_2, CLASSES, W2, B2}};

const net_tensor_t net_tensors[NET_TENSORS] = {
    {"layer3.bias", B2, CLASSES},     {"layer3.weight", W2, (size_t)NET_WIDTH_2 *CLASSES},
    {"layer2.bias", B1, NET_WIDTH_2}, {"layer2.weight", W1, (size_t)NET_WIDTH_1 *NET_WIDTH_2},
    {"layer1.bias", B0, NET_WIDTH_1}, {"layer1.weight", W0, (size_t)PIXELS *NET_WIDTH_1},
};

_Static_assert(B2 + CLASSES == NET_PARAMS, "the layers fill the array of weights");

void net_init(float *weights, uint64_t seed)
{
    uint64_t state = seed ^ UINT64_C(0x6469676974730000);
    memset(weights, 0, NET_PARAMS * sizeof *weights);
    for (int l = 0; l < NET_LAYERS; l++) {
        float reach = sqrtf(6.0f / (float)layers[l].in); /* uniform, with the variance that suits ReLU */
        for (int i = 0; i < layers[l].in * layers[l].out; i++)
            weights[layers[l].weights + (size_t)i] = reach * (2.0f * random_unit(&state) - 1.0f);
    }
}

static void forward(const float *weights, const float *pixels, net_pass_t *p)
{
    memcpy(p->at[0], pixels, PIXELS * sizeof *pixels);
    for (int l = 0; l < NET_LAYERS; l++) {
        const layer_t *layer = &layers[l];
        const float *x = p->at[l], *w = weights + layer->weights;
        float *y = p->at[l + 1];
        memcpy(y, weights + layer->biases, (size_t)layer->out * sizeof *y);
        for (int i = 0; i < layer->in; i++, w += layer->out) {
            if (x[i] == 0) continue;
            for (int j = 0; j < layer->out; j++) y[j] += x[i] * w[j];
        }
        if (l == NET_LAYERS - 1) break;
        for (int j = 0; j < layer->out; j++) y[j] = y[j] > 0 ? y[j] : 0;
    }
}

/* Turns the last layer's output into the gradient of the loss by it; returns the loss. */
static float loss_gradient(float *y, int label)
{
    float top = y[0], sum = 0, of_label = y[label];
    for (int j = 1; j < CLASSES; j++) top = y[j] > top ? y[j] : top;
    for (int j = 0; j < CLASSES; j++) {
        y[j] = expf(y[j] - top);
        sum += y[j];
    }
    for (int j = 0; j < CLASSES; j++) y[j] /= sum;
    y[label] -= 1;
    return logf(sum) + top - of_label;
}

float net_forward(const float *weights, const images_t *images, const int *index, int count, net_pass_t *pass)
{
    float loss = 0;
    for (int i = 0; i < count; i++) {
        forward(weights, images->pixels[index[i]], &pass[i]);
        loss += loss_gradient(pass[i].at[NET_LAYERS], images->label[index[i]]);
    }
    return loss;
}

static void backward(const layer_t *layer, bool first, const float *w, const float *d, float *x, float *gradient)
{
    float *gw = gradient + layer->weights, *gb = gradient + layer->biases;
    for (int j = 0; j < layer->out; j++) gb[j] += d[j];
    for (int i = 0; i < layer->in; i++, gw += layer->out, w += layer->out) {
        if (x[i] == 0) continue; /* and so is the gradient, by its input and by ReLU */
        float sum = 0;
        for (int j = 0; j < layer->out; j++) gw[j] += x[i] * d[j];
        for (int j = 0; !first && j < layer->out; j++) sum += w[j] * d[j];
        x[i] = sum; /* no longer needed: from here on the gradient of the layer below */
    }
}

void net_backward(const float *weights, int layer, net_pass_t *pass, int count, float *gradient)
{
    const layer_t *l = &layers[layer];
    for (int i = 0; i < count; i++)
        backward(l, layer == 0, weights + l->weights, pass[i].at[layer + 1], pass[i].at[layer], gradient);
}

int net_tensors_of(int layer)
{
    return 2 * (NET_LAYERS - 1 - layer);
}

int net_right(const float *weights, const images_t *images, int from, int to)
{
    int right = 0;
    net_pass_t p;
    for (int i = from; i < to; i++) {
        int best = 0;
        forward(weights, images->pixels[i], &p);
        for (int j = 1; j < CLASSES; j++)
            if (p.at[NET_LAYERS][j] > p.at[NET_LAYERS][best]) best = j;
        right += best == images->label[i];
    }
    return right;
}
