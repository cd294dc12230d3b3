/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what both sides of the store read from the other: answers, paths, numbers.
 */
#include "store.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_store_answer_t answer;
    int done = kolo_store_answer_parse((const char *)data, size, &answer);
    if (done == 1 && (answer.body_at + answer.body_bytes > size || answer.body_bytes > KOLO_STORE_VALUE_MAX))
        abort();
    char *text = malloc(size + 1);
    if (text == NULL) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    uint64_t count;
    uint8_t bytes[32];
    char again[65];
    kolo_store_count(text, &count);
    if (kolo_store_path_ok(text) &&
        (text[0] != '/' || strstr(text, "//") != NULL || strlen(text) >= KOLO_STORE_PATH_BYTES))
        abort();
    if (kolo_store_unhex(text, bytes, 32)) {
        kolo_store_hex(again, bytes, 32);
        if (strcmp(again, text) != 0) abort();
    }
    free(text);
    return 0;
}
