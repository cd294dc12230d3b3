/* SPDX-License-Identifier: Apache-2.0
 *
 * What both sides of the store read from bytes that came over a network, and how they sign (store.h).
 */
#include "store.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

static size_t name_length(const char *text)
{
    size_t n = 0;
    while ((text[n] >= 'a' && text[n] <= 'z') || (text[n] >= 'A' && text[n] <= 'Z') ||
           (text[n] >= '0' && text[n] <= '9') || text[n] == '.' || text[n] == '_' || text[n] == '-')
        n++;
    return n;
}

bool kolo_store_name_ok(const char *name)
{
    size_t n = name_length(name);
    return n > 0 && n <= KOLO_STORE_NAME_MAX && name[n] == '\0';
}

bool kolo_store_path_ok(const char *path)
{
    if (path[0] != '/') return false;
    size_t n = name_length(path + 1);
    return n > 0 && n <= KOLO_STORE_NAME_MAX && path[1 + n] == '/' && kolo_store_name_ok(path + 2 + n);
}

bool kolo_store_unhex(const char *text, uint8_t *data, size_t bytes)
{
    if (strnlen(text, 2 * bytes + 1) != 2 * bytes) return false;
    for (size_t i = 0; i < 2 * bytes; i++) {
        int digit = text[i] >= '0' && text[i] <= '9'   ? text[i] - '0'
                    : text[i] >= 'a' && text[i] <= 'f' ? text[i] - 'a' + 10
                                                       : -1;
        if (digit < 0) return false;
        data[i / 2] = (uint8_t)(i % 2 == 0 ? digit << 4 : data[i / 2] | digit);
    }
    return true;
}

void kolo_store_hex(char *text, const uint8_t *data, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    text[2 * bytes] = '\0';
}

bool kolo_store_count(const char *text, uint64_t *count)
{
    uint64_t v = 0;
    size_t n = 0;
    for (; text[n] >= '0' && text[n] <= '9' && n < 18; n++) v = v * 10 + (uint64_t)(text[n] - '0');
    if (n == 0 || text[n] != '\0') return false;
    *count = v;
    return true;
}

/* ---- an answer ---- */

/* The value of one header line, if it is that header; leading blanks are skipped. */
static bool header(const char *line, size_t bytes, const char *name, char *value, size_t size)
{
    size_t n = strlen(name);
    if (bytes <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return false;
    for (n++; n < bytes && line[n] == ' ';) n++;
    if (bytes - n >= size || memchr(line + n, 0, bytes - n) != NULL) return false;
    memcpy(value, line + n, bytes - n);
    value[bytes - n] = '\0';
    return true;
}

int kolo_store_answer_parse(const char *text, size_t bytes, kolo_store_answer_t *answer)
{
    enum { HEAD_MAX = 4096 };
    static const char start[] = "HTTP/1.1 ";
    const size_t start_bytes = sizeof start - 1;
    kolo_store_answer_t a = {0};
    char length[20] = "";
    size_t look = bytes < HEAD_MAX ? bytes : HEAD_MAX;
    if (bytes == 0) return 0; /* text may be NULL */
    const char *end = memmem(text, look, "\r\n\r\n", 4);
    if (end == NULL) return bytes < HEAD_MAX ? 0 : -1;
    if ((size_t)(end - text) < start_bytes + 3 || memcmp(text, start, start_bytes) != 0) return -1;
    for (size_t i = start_bytes; i < start_bytes + 3; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        a.status = a.status * 10 + (text[i] - '0');
    }
    const char *line = memmem(text, (size_t)(end + 2 - text), "\r\n", 2);
    while (line != NULL && line < end) {
        const char *stop = memmem(line + 2, (size_t)(end + 2 - (line + 2)), "\r\n", 2);
        size_t n = (size_t)(stop - (line + 2));
        header(line + 2, n, "Content-Length", length, sizeof length);
        header(line + 2, n, "Kolo-Signature", a.signature, sizeof a.signature);
        header(line + 2, n, "Kolo-Body", a.body_hash, sizeof a.body_hash);
        line = stop;
    }
    uint64_t body;
    if (!kolo_store_count(length, &body) || body > KOLO_STORE_VALUE_MAX) return -1;
    a.body_at = (size_t)(end + 4 - text);
    a.body_bytes = (size_t)body;
    if (bytes - a.body_at < a.body_bytes) return 0;
    *answer = a;
    return 1;
}

/* ---- signatures ---- */

#ifdef KOLO_HAVE_SODIUM

bool kolo_store_hash(const void *body, size_t bytes, char hash[KOLO_STORE_HEX])
{
    uint8_t out[32];
    crypto_generichash(out, sizeof out, body, bytes, NULL, 0);
    kolo_store_hex(hash, out, sizeof out);
    return true;
}

bool kolo_store_sign(const uint8_t key[KOLO_STORE_KEY_BYTES], const char *what, const char *client, uint64_t count,
                     const char *body_hash, char signature[KOLO_STORE_HEX])
{
    char text[16 + 16 + KOLO_STORE_PATH_BYTES + 64 + 32 + 80];
    uint8_t out[32];
    int n = snprintf(text, sizeof text, "kolo-store 1\n%s\n%s\n%llu\n%s\n", what, client, (unsigned long long)count,
                     body_hash);
    if (n < 0 || (size_t)n >= sizeof text) return false;
    crypto_generichash(out, sizeof out, (const uint8_t *)text, (size_t)n, key, KOLO_STORE_KEY_BYTES);
    kolo_store_hex(signature, out, sizeof out);
    return true;
}

bool kolo_store_same(const char *a, const char *b)
{
    return strlen(a) == KOLO_STORE_HEX - 1 && strlen(b) == KOLO_STORE_HEX - 1 &&
           sodium_memcmp(a, b, KOLO_STORE_HEX - 1) == 0;
}

#else

bool kolo_store_hash(const void *body, size_t bytes, char hash[KOLO_STORE_HEX])
{
    (void)body, (void)bytes, (void)hash;
    return false;
}

bool kolo_store_sign(const uint8_t key[KOLO_STORE_KEY_BYTES], const char *what, const char *client, uint64_t count,
                     const char *body_hash, char signature[KOLO_STORE_HEX])
{
    (void)key, (void)what, (void)client, (void)count, (void)body_hash, (void)signature;
    return false;
}

bool kolo_store_same(const char *a, const char *b)
{
    (void)a, (void)b;
    return false;
}

#endif
