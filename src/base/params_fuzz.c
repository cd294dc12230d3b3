/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the parameter parser. The first byte chooses a row, the rest is its text: what is taken lies in the
 * row's range and prints as a text that parses to the same value; what is refused changes nothing. Then the whole
 * input is an environment, one NAME=value per line, for a table with all of the rows.
 */
#include "base/params.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES 5000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t number, wide, bytes, choice;
static bool flag;
static const char *text_value, *text_set;

static const kolo_param_t rows[] = {
    {"KOLO_A", KOLO_PARAM_INT, "5", -3, 1000, NULL, true, "a number", &number},
    {"KOLO_B", KOLO_PARAM_INT, "0", INT64_MIN, INT64_MAX, NULL, true, "any number", &wide},
    {"KOLO_C", KOLO_PARAM_SIZE, "64K", 4096, INT64_C(1) << 40, NULL, true, "a size", &bytes},
    {"KOLO_D", KOLO_PARAM_BOOL, "1", 0, 0, NULL, true, "a switch", &flag},
    {"KOLO_E", KOLO_PARAM_ENUM, "auto", 0, 0, "auto|ring|tree|halving_doubling", true, "a choice", &choice},
    {"KOLO_F", KOLO_PARAM_STR, NULL, 0, 0, NULL, false, "a text", &text_value},
    {"KOLO_G", KOLO_PARAM_FILE, "x", 0, 0, NULL, true, "a text with a default", &text_set},
};
static const kolo_param_table_t table = {"fuzz", rows, KOLO_COUNTOF(rows), NULL};
static const kolo_param_table_t *const tables[] = {&table};

/* A default is the table's. */
static void forget_text(const char **text)
{
    bool lent = false;
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++) lent |= *text == rows[i].def;
    if (!lent) free((char *)(uintptr_t)*text);
    *text = NULL;
}

static void forget_texts(void)
{
    forget_text(&text_value);
    forget_text(&text_set);
}

static int64_t value_of(const kolo_param_t *row)
{
    return row->kind == KOLO_PARAM_BOOL ? *(const bool *)row->value : *(const int64_t *)row->value;
}

static bool in_domain(const kolo_param_t *row)
{
    int64_t v = value_of(row);
    switch (row->kind) {
    case KOLO_PARAM_BOOL:
        return v == 0 || v == 1;
    case KOLO_PARAM_ENUM:
        return v >= 0 && v < 4;
    default:
        return v >= row->min && v <= row->max;
    }
}

static void parse_one(const kolo_param_t *row, const char *text)
{
    char printed[TEXT_BYTES];
    forget_texts();
    if (row->kind == KOLO_PARAM_STR || row->kind == KOLO_PARAM_FILE) {
        const char *const *value = row->value;
        kolo_status_t status = kolo_param_parse(row, text);
        if ((status == KOLO_OK) != (strlen(text) <= 4096)) abort();
        if (status == KOLO_OK ? strcmp(*value, text) != 0 : *value != NULL) abort();
        return;
    }
    if (kolo_param_parse(row, row->def) != KOLO_OK) abort();
    int64_t before = value_of(row);
    if (kolo_param_parse(row, text) != KOLO_OK) {
        if (value_of(row) != before || !strstr(kolo_error_text(), row->key)) abort();
        return;
    }
    int64_t value = value_of(row);
    if (!in_domain(row)) abort();
    kolo_param_print(row, printed, sizeof printed);
    if (kolo_param_parse(row, printed) != KOLO_OK || value_of(row) != value) abort();
}

/* The value behind "KEY=" at the start of a line. */
static const char *look_up(const char *key, void *arg)
{
    static char value[TEXT_BYTES];
    size_t n = strlen(key);
    for (const char *line = arg; *line; line += strspn(line, "\n")) {
        size_t length = strcspn(line, "\n");
        if (length > n && memcmp(line, key, n) == 0 && line[n] == '=') {
            memcpy(value, line + n + 1, length - n - 1);
            value[length - n - 1] = '\0';
            return value;
        }
        line += length;
    }
    return NULL;
}

static void load_all(char *environment)
{
    forget_texts();
    kolo_status_t status = kolo_params_load(tables, 1, look_up, environment);
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++) /* also after an error every row has a value of its own */
        if (rows[i].kind != KOLO_PARAM_STR && rows[i].kind != KOLO_PARAM_FILE && !in_domain(&rows[i])) abort();
    uint64_t hash = kolo_params_agree_hash(tables, 1);
    forget_texts();
    if (kolo_params_load(tables, 1, look_up, environment) != status) abort();
    if (kolo_params_agree_hash(tables, 1) != hash) abort();
    forget_texts();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_BYTES];
    if (size == 0) return 0;
    size_t n = size - 1 < sizeof text - 1 ? size - 1 : sizeof text - 1;
    memcpy(text, data + 1, n);
    text[n] = '\0';
    parse_one(&rows[data[0] % KOLO_COUNTOF(rows)], text);
    load_all(text);
    return 0;
}
