/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing and printing of parameters. The environment is read here and nowhere else. See params.h.
 */
#include "base/params.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text/plain.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

extern char **environ;

kolo_status_t kolo_param_refuse(const kolo_param_t *row, const char *text, const char *allowed)
{
    const bool helps = row->help[0] != '\0'; /* an option of a tool has its help elsewhere */
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s%s=\"%.64s\": expected %s%s%s%s", helps ? "parameter " : "",
                     row->key, text, allowed, helps ? " (" : "", row->help, helps ? ")" : "");
}

static kolo_status_t parse_number(const kolo_param_t *row, const char *text)
{
    char *end, allowed[96];
    errno = 0;
    long long value = strtoll(text, &end, 0);
    int64_t scale = 1;
    if (row->kind == KOLO_PARAM_SIZE && end != text && *end) {
        static const char suffix[] = "KMG";
        const char *s = strchr(suffix, *end & ~0x20);
        if (s && *s) {
            scale = (int64_t)1 << (10 * (s - suffix + 1));
            end++;
        }
    }
    snprintf(allowed, sizeof allowed, "%s from %" PRId64 " to %" PRId64,
             row->kind == KOLO_PARAM_SIZE ? "a size (as 8, 64K or 1M)" : "a number", row->min, row->max);
    if (errno || end == text || *end) return kolo_param_refuse(row, text, allowed);
    if (value > INT64_MAX / scale || value < INT64_MIN / scale) return kolo_param_refuse(row, text, allowed);
    value *= scale;
    if (value < row->min || value > row->max) return kolo_param_refuse(row, text, allowed);
    *(int64_t *)row->value = value;
    return KOLO_OK;
}

static kolo_status_t parse_bool(const kolo_param_t *row, const char *text)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < KOLO_COUNTOF(words); i++) {
        if (kolo_plain_is_word(text, strlen(text), words[i])) {
            *(bool *)row->value = i & 1;
            return KOLO_OK;
        }
    }
    return kolo_param_refuse(row, text, "0 or 1");
}

static kolo_status_t parse_enum(const kolo_param_t *row, const char *text)
{
    const char *p = row->choices;
    for (int64_t i = 0;; i++) {
        size_t n = strcspn(p, "|");
        if (kolo_plain_is_word(p, n, text)) {
            *(int64_t *)row->value = i;
            return KOLO_OK;
        }
        if (!p[n]) return kolo_param_refuse(row, text, row->choices);
        p += n + 1;
    }
}

kolo_status_t kolo_param_parse(const kolo_param_t *row, const char *text)
{
    switch (row->kind) {
    case KOLO_PARAM_INT:
    case KOLO_PARAM_SIZE:
        return parse_number(row, text);
    case KOLO_PARAM_BOOL:
        return parse_bool(row, text);
    case KOLO_PARAM_ENUM:
        return parse_enum(row, text);
    case KOLO_PARAM_STR:
    case KOLO_PARAM_FILE:
        break;
    }
    if (strlen(text) > 4096) return kolo_param_refuse(row, text, "at most 4096 characters");
    if (text == row->def) { /* it lives as long as the table */
        *(const char **)row->value = text;
        return KOLO_OK;
    }
    char *copy = strdup(text);
    if (!copy) return kolo_fail(KOLO_ERR_NO_MEMORY, "parameter %s: out of memory", row->key);
    *(const char **)row->value = copy; /* parsed once: lives as long as the process */
    return KOLO_OK;
}

static const char *(*instead)(const char *key);

void kolo_params_set_fallback(const char *(*lookup)(const char *key))
{
    instead = lookup;
}

const char *kolo_environment(const char *key)
{
    const char *text = getenv(key);
    return text && *text ? text : NULL; /* `KEY= program` takes a setting away */
}

void kolo_environment_each(const char *prefix, void (*fn)(const char *key, size_t length))
{
    for (char **e = environ; e && *e; e++)
        if (strncmp(*e, prefix, strlen(prefix)) == 0) fn(*e, strcspn(*e, "="));
}

static const char *lookup_environment(const char *key, void *arg)
{
    (void)arg;
    const char *text = kolo_environment(key);
    return text || !instead ? text : instead(key);
}

/* Tells whether a file's name in the environment is of a caller who may do less than the program. */
static bool must_not_be_read(const kolo_param_t *row)
{
    return row->kind == KOLO_PARAM_FILE && getauxval(AT_SECURE) != 0;
}

bool kolo_param_in_environment(const kolo_param_t *row)
{
    return !must_not_be_read(row) && lookup_environment(row->key, NULL) != NULL;
}

static bool is_text(const kolo_param_t *row)
{
    return row->kind == KOLO_PARAM_STR || row->kind == KOLO_PARAM_FILE;
}

kolo_status_t kolo_params_load(const kolo_param_table_t *const *tables, size_t ntables, kolo_param_lookup_t lookup,
                               void *arg)
{
    kolo_status_t first = KOLO_OK;
    char message[KOLO_ERROR_TEXT_BYTES] = "";
    const bool environment = !lookup;
    if (!lookup) lookup = lookup_environment;
    for (size_t t = 0; t < ntables; t++) {
        for (size_t i = 0; i < tables[t]->count; i++) {
            const kolo_param_t *row = &tables[t]->rows[i];
            const bool reads = first == KOLO_OK && !(environment && must_not_be_read(row));
            const char *text = reads ? lookup(row->key, arg) : NULL;
            if (text) {
                first = kolo_param_parse(row, text);
                if (first == KOLO_OK && tables[t]->check && is_text(row)) first = tables[t]->check(row, text);
                if (first == KOLO_OK) continue;
                snprintf(message, sizeof message, "%s", kolo_error_text());
            }
            if (is_text(row) && !row->def)
                *(const char **)row->value = NULL;
            else
                KOLO_TRY(kolo_param_parse(row, row->def));
        }
    }
    return first == KOLO_OK ? KOLO_OK : kolo_fail(first, "%s", message);
}

static bool known(const kolo_param_table_t *const *tables, size_t ntables, const char *key, size_t length)
{
    for (size_t t = 0; t < ntables; t++)
        for (size_t i = 0; i < tables[t]->count; i++)
            if (strlen(tables[t]->rows[i].key) == length && memcmp(tables[t]->rows[i].key, key, length) == 0)
                return true;
    return false;
}

#define KEY_MAX  64
#define NEAR_MAX 2 /* letters that are wrong, missing or too many */

/* Returns how many letters must be changed, added or left out to make one of the other. */
static size_t distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t row[KEY_MAX + 1];
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            const size_t change = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = KOLO_MIN(change, KOLO_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[nb];
}

/* Returns the parameter that was meant: one that begins so, or is spelt nearly so; NULL: no guess. */
static const char *meant(const kolo_param_table_t *const *tables, size_t ntables, const char *key, size_t length)
{
    const char *best = NULL;
    size_t least = KEY_MAX;
    for (size_t t = 0; t < ntables; t++)
        for (size_t i = 0; i < tables[t]->count; i++) {
            const char *k = tables[t]->rows[i].key;
            const size_t n = strlen(k);
            if (n > KEY_MAX || length > KEY_MAX) continue;
            const bool begins = n > length && length > 8 && strncmp(k, key, length) == 0;
            const size_t d = begins ? 0 : distance(key, length, k, n);
            if (d < least && d <= NEAR_MAX) {
                least = d;
                best = k;
            }
        }
    return best;
}

static void warn_unread(const kolo_param_t *row)
{
    if (strncmp(row->key, "KOLO_", 5) != 0 || !must_not_be_read(row) || !lookup_environment(row->key, NULL)) return;
    kolo_warn(
        "params",
        "%s is ignored: this program has other rights than its caller (set-user-id or the like), who must not "
        "choose which files it reads and writes or which libraries it loads",
        row->key);
}

void kolo_params_warn_unknown(const kolo_param_table_t *const *tables, size_t ntables)
{
    for (size_t t = 0; t < ntables; t++)
        for (size_t i = 0; i < tables[t]->count; i++) warn_unread(&tables[t]->rows[i]);
    for (char **e = environ; e && *e; e++) {
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "KOLO_", 5) != 0 || known(tables, ntables, *e, n)) continue;
        const char *guess = meant(tables, ntables, *e, n);
        kolo_warn("params", "unknown parameter %.*s in the environment%s%s%s; kolo-info --params lists all", (int)n,
                  *e, guess ? " (is " : "", guess ? guess : "", guess ? " meant?)" : "");
    }
}

void kolo_param_print(const kolo_param_t *row, char *buf, size_t bytes)
{
    const char *p = row->choices;
    switch (row->kind) {
    case KOLO_PARAM_INT:
    case KOLO_PARAM_SIZE:
        snprintf(buf, bytes, "%" PRId64, *(const int64_t *)row->value);
        return;
    case KOLO_PARAM_BOOL:
        snprintf(buf, bytes, "%d", *(const bool *)row->value);
        return;
    case KOLO_PARAM_ENUM:
        for (int64_t i = *(const int64_t *)row->value; i > 0; i--) p += strcspn(p, "|") + 1;
        snprintf(buf, bytes, "%.*s", (int)strcspn(p, "|"), p);
        return;
    case KOLO_PARAM_STR:
    case KOLO_PARAM_FILE:
        break;
    }
    const char *text = *(const char *const *)row->value;
    snprintf(buf, bytes, "%s", text ? text : "");
}

uint64_t kolo_params_agree_hash(const kolo_param_table_t *const *tables, size_t ntables)
{
    uint64_t hash = KOLO_HASH_INIT;
    char text[256];
    for (size_t t = 0; t < ntables; t++) {
        for (size_t i = 0; i < tables[t]->count; i++) {
            const kolo_param_t *row = &tables[t]->rows[i];
            if (!row->must_agree) continue;
            kolo_param_print(row, text, sizeof text);
            hash = kolo_hash_bytes(hash, row->key, strlen(row->key) + 1);
            hash = kolo_hash_bytes(hash, text, strlen(text) + 1);
        }
    }
    return hash;
}
