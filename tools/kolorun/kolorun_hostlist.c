/* SPDX-License-Identifier: Apache-2.0
 *
 * See kolorun_hostlist.h. Bytes from a file or a script: everything is checked here.
 */
#include "kolorun_hostlist.h"

#include "base/text/plain.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (16u << 20)

static bool complain(char *why, size_t why_bytes, const char *text, size_t bytes, const char *what)
{
    char shown[64];
    snprintf(why, why_bytes, "\"%s\" %s", kolo_plain_copy(shown, sizeof shown, text, bytes), what);
    return false;
}

static bool name_ok(const char *name, size_t bytes)
{
    if (bytes == 0 || bytes > KOLORUN_HOST_NAME_MAX || name[0] == '-') return false;
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)name[i]) && memchr(".-_:@%", name[i], 6) == NULL) return false;
    return true;
}

static bool number_of(const char *text, size_t bytes, int *value)
{
    long v = 0;
    if (bytes == 0 || bytes > 6) return false;
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)text[i])) return false;
        v = v * 10 + (text[i] - '0');
    }
    if (v < 1 || v > KOLORUN_SLOTS_MAX) return false;
    *value = (int)v;
    return true;
}

static bool put(kolorun_hostlist_t *list, const char *name, size_t bytes, int slots)
{
    for (int i = 0; i < list->count; i++) {
        kolorun_hostslots_t *h = &list->hosts[i];
        if (strlen(h->name) != bytes || memcmp(h->name, name, bytes) != 0) continue;
        if (h->slots > KOLORUN_SLOTS_MAX - slots || list->slots > KOLORUN_SLOTS_MAX - slots) return false;
        h->slots += slots;
        list->slots += slots;
        return true;
    }
    if (list->count == KOLORUN_HOSTS_MAX || list->slots > KOLORUN_SLOTS_MAX - slots) return false;
    kolorun_hostslots_t *more = realloc(list->hosts, sizeof *more * ((size_t)list->count + 1));
    if (more == NULL) return false;
    list->hosts = more;
    more[list->count] = (kolorun_hostslots_t){.slots = slots};
    memcpy(more[list->count].name, name, bytes);
    list->count++;
    list->slots += slots;
    return true;
}

/* "slots=4 max_slots=8", as in the host files of Open MPI. The most that a host takes says nothing here: kolorun
 * never puts more ranks on a host than it has slots. */
static bool read_words(const char *at, const char *end, int *slots)
{
    static const char *const most[] = {"max_slots=", "max-slots="};
    bool any = false;
    int unused;
    while (at < end) {
        const char *stop = at;
        while (stop < end && !isblank((unsigned char)*stop)) stop++;
        size_t n = (size_t)(stop - at);
        bool is_most = n > 10 && (memcmp(at, most[0], 10) == 0 || memcmp(at, most[1], 10) == 0);
        bool is_slots = !any && n > 6 && memcmp(at, "slots=", 6) == 0;
        if (is_slots && !number_of(at + 6, n - 6, slots)) return false;
        if (is_most && !number_of(at + 10, n - 10, &unused)) return false;
        if (!is_slots && !is_most) return false;
        any |= is_slots;
        for (at = stop; at < end && isblank((unsigned char)*at);) at++;
    }
    return true;
}

/* An address of IPv6, maybe with its interface: "fe80::1%eth0". */
static bool is_address(const char *text, size_t bytes)
{
    char name[INET6_ADDRSTRLEN];
    struct in6_addr address;
    const char *zone = memchr(text, '%', bytes);
    size_t n = zone != NULL ? (size_t)(zone - text) : bytes;
    if (n >= sizeof name) return false;
    memcpy(name, text, n);
    name[n] = '\0';
    return inet_pton(AF_INET6, name, &address) == 1;
}

/* One item without blanks around it. */
static bool add_item(kolorun_hostlist_t *list, const char *text, size_t bytes, char *why, size_t why_bytes)
{
    const char *name = text, *end = text + bytes, *after, *blank = text;
    size_t length;
    int slots = 1;
    while (blank < end && !isblank((unsigned char)*blank)) blank++;
    if (*text == '[') {
        const char *close = memchr(text, ']', (size_t)(blank - text));
        if (close == NULL) return complain(why, why_bytes, text, bytes, "lacks a ]");
        name = text + 1;
        length = (size_t)(close - name);
        after = close + 1;
    } else {
        /* One colon ends the name; with more it is an address of IPv6 and holds no number. */
        const char *colon = memchr(text, ':', (size_t)(blank - text));
        bool address = colon != NULL && memchr(colon + 1, ':', (size_t)(blank - colon - 1)) != NULL;
        if (address && !is_address(text, (size_t)(blank - text)))
            return complain(why, why_bytes, text, bytes, "is neither host:slots nor an address of IPv6");
        after = colon != NULL && !address ? colon : blank;
        length = (size_t)(after - name);
    }
    if (!name_ok(name, length)) return complain(why, why_bytes, text, bytes, "is no host name");
    if (after < blank && (*after != ':' || !number_of(after + 1, (size_t)(blank - after - 1), &slots)))
        return complain(why, why_bytes, text, bytes, "has no number of slots from 1 to 65536 behind its colon");
    while (blank < end && isblank((unsigned char)*blank)) blank++;
    if (blank < end) { /* host slots=N */
        if (after < blank && *after == ':') return complain(why, why_bytes, text, bytes, "gives its slots twice");
        if (!read_words(blank, end, &slots))
            return complain(why, why_bytes, text, bytes, "is neither host:slots nor host slots=N");
    }
    return put(list, name, length, slots) || complain(why, why_bytes, text, bytes, "makes more than 65536 slots");
}

static void put_line(int line, char *why, size_t why_bytes)
{
    char text[200];
    snprintf(text, sizeof text, "%s", why);
    snprintf(why, why_bytes, "line %d: %s", line, text);
}

bool kolorun_hostlist_add(kolorun_hostlist_t *list, const char *text, size_t bytes, char *why, size_t why_bytes)
{
    const char *end = text + bytes;
    const bool lines = memchr(text, '\n', bytes) != NULL;
    for (int line = 1; text < end; line++) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        if (line_end == NULL) line_end = end;
        const char *stop = memchr(text, '#', (size_t)(line_end - text));
        if (stop == NULL) stop = line_end;
        while (text <= stop) {
            const char *comma = text < stop ? memchr(text, ',', (size_t)(stop - text)) : NULL;
            const char *a = text, *b = comma != NULL ? comma : stop;
            text = b + 1;
            while (a < b && isspace((unsigned char)*a)) a++;
            while (a < b && isspace((unsigned char)b[-1])) b--;
            if (a >= b || add_item(list, a, (size_t)(b - a), why, why_bytes)) continue;
            if (lines) put_line(line, why, why_bytes);
            return false;
        }
        text = line_end + 1;
    }
    return true;
}

bool kolorun_hostlist_read(kolorun_hostlist_t *list, const char *path, char *why, size_t why_bytes)
{
    char *text = NULL;
    size_t used = 0, n = 1;
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        snprintf(why, why_bytes, "cannot open %s: %s", path, strerror(errno));
        return false;
    }
    while (n > 0 && used <= FILE_MAX) {
        char *more = realloc(text, used + 65536);
        if (more == NULL) break;
        text = more;
        n = fread(text + used, 1, 65536, f);
        used += n;
    }
    bool whole = n == 0 && !ferror(f);
    fclose(f);
    bool ok = whole && kolorun_hostlist_add(list, text, used, why, why_bytes);
    if (ok && list->count == 0) {
        snprintf(why, why_bytes, "%s names no host", path);
        ok = false;
    }
    if (!whole) snprintf(why, why_bytes, "cannot read %s (larger than 16 MiB?)", path);
    free(text);
    return ok;
}

void kolorun_hostlist_fini(kolorun_hostlist_t *list)
{
    free(list->hosts);
    *list = (kolorun_hostlist_t){0};
}
