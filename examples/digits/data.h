/* SPDX-License-Identifier: Apache-2.0
 *
 * The images, and which of them are for training. See README.md for where they come from.
 */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PIXELS       64 /* 8 x 8, each 0 (white) to 16 in the file, 0 to 1 here */
#define CLASSES      10
#define MOST_IMAGES  4096
#define LEAST_IMAGES 40 /* less makes no sense as a training set */

typedef struct {
    int count;
    float (*pixels)[PIXELS];
    uint8_t *label;
} images_t;

typedef struct {
    images_t train, test;
} digits_t;

/* Reads a CSV file of 64 pixels and a class per line. Every fourth image of each class, in the order of the file,
 * is for testing, the others for training. On failure false, with a sentence in `error`, and nothing to free. */
bool digits_load(digits_t *digits, const char *path, char *error, size_t room);
void digits_free(digits_t *digits);

#endif
