/* SPDX-License-Identifier: Apache-2.0
 *
 * A timeline as a gzip file that can be unpacked between any two writes, and so also when the process is killed
 * there. It is one stream (RFC 1952): the blocks end at whole bytes (Z_SYNC_FLUSH), so behind each one the stream
 * may be ended by hand: a last block that is stored and not compressed, then check sum and length of the whole
 * text. The next block is written over that end. zlib is loaded when it is first needed.
 */
#include "engine/timeline/timeline.h"

#ifdef KOLO_HAVE_ZLIB

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define ZLIB_FILE "libz.so.1"

struct kolo_gzip {
    void *library;
    __typeof__(&deflateInit2_) init;
    __typeof__(&deflate) deflate;
    __typeof__(&deflateEnd) end;
    __typeof__(&crc32) crc32;
    z_stream stream;
    bool begun;
    char *out;
    size_t capacity;
    uint32_t crc, bytes;         /* of all text so far */
    uint32_t crc_was, bytes_was; /* without the last block */
};

static kolo_status_t find(void *library, const char *symbol, void *pointer)
{
    void *p = dlsym(library, symbol);
    if (!p) return kolo_fail(KOLO_ERR_UNSUPPORTED, "engine: " ZLIB_FILE " has no function %s", symbol);
    *(void **)pointer = p;
    return KOLO_OK;
}

static kolo_status_t load(kolo_gzip_t *g)
{
    g->library = dlopen(ZLIB_FILE, RTLD_NOW | RTLD_LOCAL);
    const char *why = g->library ? NULL : dlerror();
    if (!g->library)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "engine: a timeline whose name ends in .gz needs zlib, and " ZLIB_FILE
                         " (Debian: zlib1g) cannot be loaded: %s",
                         why ? why : "no reason given");
    KOLO_TRY(find(g->library, "deflateInit2_", &g->init));
    KOLO_TRY(find(g->library, "deflate", &g->deflate));
    KOLO_TRY(find(g->library, "deflateEnd", &g->end));
    return find(g->library, "crc32", &g->crc32);
}

kolo_status_t kolo_gzip_open(kolo_gzip_t **gzip)
{
    kolo_gzip_t *g = calloc(1, sizeof *g);
    if (!g) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a timeline");
    kolo_status_t status = load(g);
    /* -15: the bare stream with the largest window; its head and end are written here. */
    if (status == KOLO_OK && g->init(&g->stream, Z_BEST_SPEED, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY, ZLIB_VERSION,
                                     (int)sizeof g->stream) != Z_OK)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "engine: zlib cannot begin: out of memory, or not of version 1");
    if (status == KOLO_OK) {
        *gzip = g;
        return KOLO_OK;
    }
    if (g->library) dlclose(g->library);
    free(g);
    return status;
}

void kolo_gzip_close(kolo_gzip_t *g)
{
    if (!g) return;
    g->end(&g->stream);
    dlclose(g->library);
    free(g->out);
    free(g);
}

static void put_u32(char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (char)(value >> 8 * i & 255);
}

static void put_tail(const kolo_gzip_t *g, uint32_t crc, uint32_t bytes, const char end[3], char *tail)
{
    static const char stored[5] = {1, 3, 0, (char)~3, (char)~0}; /* the last block; its length, and inverted */
    memcpy(tail, stored, sizeof stored);
    memcpy(tail + 5, end, 3);
    put_u32(tail + 8, (uint32_t)g->crc32(crc, (const Bytef *)end, 3));
    put_u32(tail + 12, bytes + 3);
}

const char *kolo_gzip_block(kolo_gzip_t *g, const char *text, size_t bytes, const char end[3], size_t *block)
{
    static const char head[10] = {31, (char)139, Z_DEFLATED, 0, 0, 0, 0, 0, 0, 3}; /* no name, no time; Unix */
    const size_t at = g->begun ? 0 : sizeof head, want = at + bytes + bytes / 8 + 256;
    g->crc_was = g->crc;
    g->bytes_was = g->bytes;
    if (g->capacity < want) {
        char *more = realloc(g->out, want);
        if (!more) return NULL;
        g->out = more;
        g->capacity = want;
    }
    if (at > 0) memcpy(g->out, head, sizeof head);
    g->stream.next_in = (Bytef *)(uintptr_t)text;
    g->stream.avail_in = (uInt)bytes;
    g->stream.next_out = (Bytef *)g->out + at;
    g->stream.avail_out = (uInt)(g->capacity - at - KOLO_GZIP_TAIL_BYTES);
    if (g->deflate(&g->stream, Z_SYNC_FLUSH) != Z_OK || g->stream.avail_in > 0 || g->stream.avail_out == 0)
        return NULL;
    g->begun = true;
    g->crc = (uint32_t)g->crc32(g->crc, (const Bytef *)text, (uInt)bytes);
    g->bytes += (uint32_t)bytes; /* gzip counts modulo 2^32, too */
    *block = (size_t)((char *)g->stream.next_out - g->out);
    put_tail(g, g->crc, g->bytes, end, g->out + *block);
    return g->out;
}

void kolo_gzip_forget(kolo_gzip_t *g, const char end[3], char tail[KOLO_GZIP_TAIL_BYTES])
{
    put_tail(g, g->crc_was, g->bytes_was, end, tail);
}

#else /* without zlib */

kolo_status_t kolo_gzip_open(kolo_gzip_t **gzip)
{
    (void)gzip;
    return kolo_fail(KOLO_ERR_UNSUPPORTED,
                     "engine: a timeline whose name ends in .gz needs zlib, and this Kolo was "
                     "built without it (Debian: zlib1g-dev)");
}

const char *kolo_gzip_block(kolo_gzip_t *gzip, const char *text, size_t bytes, const char end[3], size_t *block)
{
    (void)gzip, (void)text, (void)bytes, (void)end, (void)block;
    return NULL;
}

void kolo_gzip_forget(kolo_gzip_t *gzip, const char end[3], char tail[KOLO_GZIP_TAIL_BYTES])
{
    (void)gzip, (void)end, (void)tail;
}

void kolo_gzip_close(kolo_gzip_t *gzip)
{
    (void)gzip;
}

#endif
