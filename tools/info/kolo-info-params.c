/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info --params: all tables, for people and as JSON (the manual page is made from that).
 */
#include "kolo-info.h"

#include "comm/params.h"

#include <inttypes.h>
#include <stdio.h>

const kolo_param_table_t *const *kolo_info_tables(size_t *count)
{
    return kolo_param_tables(count);
}

static const char *kind_name(kolo_param_kind_t kind)
{
    static const char *const names[] = {"int", "size", "bool", "text", "enum", "file"};
    return (unsigned)kind < KOLO_COUNTOF(names) ? names[kind] : "?";
}

static bool has_range(const kolo_param_t *row)
{
    return row->kind == KOLO_PARAM_INT || row->kind == KOLO_PARAM_SIZE;
}

static void print_row(const kolo_param_t *row)
{
    char value[4200];
    kolo_param_print(row, value, sizeof value);
    printf("  %s = %s\n", row->key, value[0] ? value : "(none)");
    printf("      %s\n", row->help);
    printf("      %s, default %s", kind_name(row->kind), row->def ? row->def : "none");
    if (has_range(row)) printf(", %" PRId64 " to %" PRId64, row->min, row->max);
    if (row->choices) printf(", one of %s", row->choices);
    if (row->must_agree) printf(", the same on all ranks");
    printf("; %s\n", kolo_param_in_environment(row) ? "set in the environment" : "the default is used");
}

static void json_text(const char *separator, const char *key, const char *text)
{
    printf("%s\"%s\": ", separator, key);
    if (!text) {
        printf("null");
        return;
    }
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            printf("\\%c", *p);
        else if (*p < ' ' ||
                 *p > '~') /* a byte that may be no UTF-8: as Latin-1, so that it is JSON all the same */
            printf("\\u%04x", *p);
        else
            putchar(*p);
    }
    putchar('"');
}

static void json_row(const char *module, const kolo_param_t *row)
{
    char value[4200];
    kolo_param_print(row, value, sizeof value);
    json_text("  {", "key", row->key);
    json_text(", ", "module", module);
    json_text(", ", "kind", kind_name(row->kind));
    json_text(", ", "value", value[0] || row->def ? value : NULL);
    json_text(", ", "default", row->def);
    json_text(", ", "source", kolo_param_in_environment(row) ? "environment" : "default");
    if (has_range(row)) printf(", \"min\": %" PRId64 ", \"max\": %" PRId64, row->min, row->max);
    if (row->choices) json_text(", ", "choices", row->choices);
    printf(", \"must_agree\": %s", row->must_agree ? "true" : "false");
    json_text(", ", "help", row->help);
    putchar('}');
}

int kolo_info_params(bool json)
{
    size_t ntables;
    const kolo_param_table_t *const *tables = kolo_info_tables(&ntables);
    const char *separator = "[\n";
    for (size_t t = 0; t < ntables; t++) {
        if (!json) printf("%s%s\n", t ? "\n" : "", tables[t]->module);
        for (size_t i = 0; i < tables[t]->count; i++) {
            if (!json) {
                print_row(&tables[t]->rows[i]);
                continue;
            }
            fputs(separator, stdout);
            json_row(tables[t]->module, &tables[t]->rows[i]);
            separator = ",\n";
        }
    }
    if (json) puts("\n]");
    return INFO_OK;
}
