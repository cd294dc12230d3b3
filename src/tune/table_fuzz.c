/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the table file. What is accepted can be written and read again, and is then the same.
 */
#include "tune/table.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* To be freed. */
static char *text_of(const kolo_tune_table_t *table, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (!out) abort();
    kolo_tune_table_write(table, NULL, out);
    if (fclose(out) != 0) abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kolo_tune_table_t table;
    size_t bytes, again;
    if (kolo_tune_table_parse((const char *)data, size, "input", &table) != KOLO_OK) return 0;
    char *first = text_of(&table, &bytes);
    if (kolo_tune_table_parse(first, bytes, "output", &table) != KOLO_OK) abort();
    char *second = text_of(&table, &again);
    if (again != bytes || memcmp(first, second, bytes) != 0) abort();
    free(first);
    free(second);
    return 0;
}
