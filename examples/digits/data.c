/* SPDX-License-Identifier: Apache-2.0
 *
 * See data.h. The file is believed only where it has the right number of fields, each in its range.
 */
#include "data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DARKEST    16
#define LINE_BYTES 512
#define TEST_OF    4 /* every fourth image of a class is for testing */

static bool reserve(images_t *images)
{
    images->count = 0;
    images->pixels = calloc(MOST_IMAGES, sizeof *images->pixels);
    images->label = calloc(MOST_IMAGES, sizeof *images->label);
    return images->pixels && images->label;
}

/* One line into 65 numbers; false when it is not that. */
static bool take_line(const char *line, float *pixels, uint8_t *label)
{
    for (int i = 0; i <= PIXELS; i++) {
        char *end;
        if (*line < '0' || *line > '9') return false; /* strtol would skip blanks and signs */
        long value = strtol(line, &end, 10);
        if (value > (i < PIXELS ? DARKEST : CLASSES - 1)) return false;
        if (i < PIXELS && *end != ',') return false;
        if (i == PIXELS && *end && *end != '\n' && *end != '\r') return false;
        if (i < PIXELS)
            pixels[i] = (float)value / DARKEST;
        else
            *label = (uint8_t)value;
        line = end + 1;
    }
    return true;
}

static bool take_file(digits_t *d, FILE *file, const char *path, char *error, size_t room)
{
    char line[LINE_BYTES];
    int number = 0, of_class[CLASSES] = {0};
    while (fgets(line, sizeof line, file)) {
        float pixels[PIXELS];
        uint8_t label = 0;
        if (++number > MOST_IMAGES) {
            snprintf(error, room, "%s has more than %d lines", path, MOST_IMAGES);
            return false;
        }
        if (!take_line(line, pixels, &label)) {
            snprintf(error, room, "%s, line %d: not %d pixels of 0 to %d and a class of 0 to %d", path, number,
                     PIXELS, DARKEST, CLASSES - 1);
            return false;
        }
        images_t *to = of_class[label]++ % TEST_OF == TEST_OF - 1 ? &d->test : &d->train;
        memcpy(to->pixels[to->count], pixels, sizeof pixels);
        to->label[to->count++] = label;
    }
    if (ferror(file)) {
        snprintf(error, room, "%s cannot be read: %s", path, strerror(errno));
        return false;
    }
    if (d->train.count >= LEAST_IMAGES && d->test.count > 0) return true;
    snprintf(error, room, "%s has %d images, which are too few to train with", path, number);
    return false;
}

bool digits_load(digits_t *digits, const char *path, char *error, size_t room)
{
    digits_t d = {0};
    bool fine = reserve(&d.train) && reserve(&d.test);
    if (!fine) snprintf(error, room, "no memory for the images");
    FILE *file = fine ? fopen(path, "re") : NULL;
    if (fine && !file)
        snprintf(error, room, "%s cannot be opened: %s (--data names another file)", path, strerror(errno));
    fine = file && take_file(&d, file, path, error, room);
    if (file) fclose(file);
    if (fine)
        *digits = d;
    else
        digits_free(&d);
    return fine;
}

void digits_free(digits_t *digits)
{
    free(digits->train.pixels);
    free(digits->train.label);
    free(digits->test.pixels);
    free(digits->test.label);
    memset(digits, 0, sizeof *digits);
}
