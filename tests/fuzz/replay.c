/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives a fuzzer's function the same inputs in every run, without libFuzzer: each seed as it is, cut, and damaged,
 * then bytes by chance. usage: fuzz_NAME [SEEDS...]; a .hex file has one input per line, any other file is one.
 * Sanitizers see each input in memory of exactly its size. `make fuzz` looks for new ways; what it finds becomes a
 * line of NAME.hex.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUTS = 32, DAMAGES = 300, CHANCES = 50000, LONGEST = 600 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t state = 20260101;
static size_t given;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

static void give(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = calloc(bytes ? bytes : 1, 1);
    if (!copy) exit(2);
    if (bytes) memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
    given++;
}

/* Zeros, ones and signs are where lengths and counts go wrong. */
static uint8_t telling_byte(void)
{
    static const uint8_t bytes[] = {0, 1, 2, 0x7f, 0x80, 0xff, '\n', ' ', '=', '<'};
    return below(2) ? bytes[below(sizeof bytes)] : (uint8_t)below(256);
}

static void give_damaged(const uint8_t *seed, size_t bytes)
{
    uint8_t *copy = calloc(1, bytes + 1);
    if (!copy) exit(2);
    give(seed, bytes);
    for (size_t i = 0; i < CUTS && i < bytes; i++) give(seed, bytes < CUTS ? i : below((uint32_t)bytes));
    for (int i = 0; i < DAMAGES && bytes; i++) {
        memcpy(copy, seed, bytes);
        for (uint32_t n = 1 + below(4); n > 0; n--) copy[below((uint32_t)bytes)] = telling_byte();
        give(copy, bytes);
    }
    free(copy);
}

static int give_lines(FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, file)) >= 0) {
        size_t bytes = (size_t)length / 2;
        uint8_t *data = malloc(bytes ? bytes : 1);
        if (!data) return 2;
        for (size_t i = 0; i < bytes; i++) {
            unsigned value;
            if (sscanf(line + 2 * i, "%2x", &value) != 1)
                return fprintf(stderr, "no hexadecimal line: %s", line), 1;
            data[i] = (uint8_t)value;
        }
        give_damaged(data, bytes);
        free(data);
    }
    free(line);
    return 0;
}

static int give_file(FILE *file)
{
    static uint8_t data[1 << 20];
    give_damaged(data, fread(data, 1, sizeof data, file));
    return ferror(file);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        const char *dot = strrchr(argv[i], '.');
        if (!file) return perror(argv[i]), 1;
        int status = dot && strcmp(dot, ".hex") == 0 ? give_lines(file) : give_file(file);
        fclose(file);
        if (status) return status;
    }
    for (int i = 0; i < CHANCES; i++) {
        uint8_t data[LONGEST];
        size_t bytes = below(i % 10 ? 64 : LONGEST);
        for (size_t k = 0; k < bytes; k++) data[k] = telling_byte();
        give(data, bytes);
    }
    printf("%zu inputs\n", given);
    return 0;
}
