/* SPDX-License-Identifier: Apache-2.0
 *
 * The model: a perceptron of three layers (64 pixels, 256, 128, 10 classes) with ReLU between them and softmax with
 * cross-entropy behind. All weights lie in one array; net_tensors tells where each layer's are.
 */
#ifndef DIGITS_NET_H
#define DIGITS_NET_H

#include "data.h"

#define NET_LAYERS  3
#define NET_WIDTH_1 256
#define NET_WIDTH_2 128
#define NET_WIDEST  256
#define NET_TENSORS (2 * NET_LAYERS)
#define NET_PARAMS                                                                                                 \
    (PIXELS * NET_WIDTH_1 + NET_WIDTH_1 + NET_WIDTH_1 * NET_WIDTH_2 + NET_WIDTH_2 + NET_WIDTH_2 * CLASSES + CLASSES)

typedef struct {
    const char *name;
    size_t first, count;
} net_tensor_t;
/* In the order in which a backward pass completes them: the last layer's first. */
extern const net_tensor_t net_tensors[NET_TENSORS];

/* What a forward pass of one image leaves for the backward pass: the pixels, what each layer puts out. */
typedef struct {
    float at[NET_LAYERS + 1][NET_WIDEST];
} net_pass_t;

/* Random weights; the same for the same seed. */
void net_init(float *weights, uint64_t seed);
/* Fills pass[0..count) for the images index[0..count) and returns the sum of their losses. */
float net_forward(const float *weights, const images_t *images, const int *index, int count, net_pass_t *pass);
/* Adds the gradients of one layer to `gradient`; the last layer comes first, layer 0 last. The order of the
 * additions depends on nothing but the arguments. */
void net_backward(const float *weights, int layer, net_pass_t *pass, int count, float *gradient);
/* The tensors of a layer, which are net_tensors[net_tensors_of(layer)] and the next one. */
int net_tensors_of(int layer);
/* How many of the images from..to-1 the model gets right. */
int net_right(const float *weights, const images_t *images, int from, int to);

#endif
