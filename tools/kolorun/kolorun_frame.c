/* SPDX-License-Identifier: Apache-2.0
 *
 * See kolorun_frame.h. Pure functions over bytes: they are what the fuzzer runs.
 */
#include "kolorun_frame.h"

#include <stdlib.h>
#include <string.h>

static uint32_t get32(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static void put32(uint8_t *b, uint32_t v)
{
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> (8 * i));
}

void kolorun_put_i32(uint8_t *at, int32_t value)
{
    put32(at, (uint32_t)value);
}

int64_t kolorun_frame_parse(const uint8_t *buf, size_t bytes, kolorun_frame_t *frame)
{
    if (bytes < KOLORUN_FRAME_HEADER) return 0;
    uint32_t type = get32(buf), length = get32(buf + 8);
    if (type < KOLORUN_START || type > KOLORUN_TROUBLE || length > KOLORUN_FRAME_MAX) return -1;
    if (bytes - KOLORUN_FRAME_HEADER < length) return 0;
    *frame = (kolorun_frame_t){.type = (kolorun_frame_type_t)type,
                               .id = (int32_t)get32(buf + 4),
                               .data = buf + KOLORUN_FRAME_HEADER,
                               .bytes = length};
    return (int64_t)KOLORUN_FRAME_HEADER + length;
}

void kolorun_frame_header(uint8_t header[KOLORUN_FRAME_HEADER], kolorun_frame_type_t type, int32_t id,
                          uint32_t bytes)
{
    put32(header, (uint32_t)type);
    put32(header + 4, (uint32_t)id);
    put32(header + 8, bytes);
}

bool kolorun_frame_number(const kolorun_frame_t *frame, int32_t *value)
{
    if (frame->bytes != 4) return false;
    *value = (int32_t)get32(frame->data);
    return true;
}

/* ---- a program to start: input or not, two counts, then texts that each end in NUL: directory, arguments,
 * environment ---- */

#define SPEC_HEADER 12u

static size_t add_texts(uint8_t *to, char *const *texts, uint32_t *count)
{
    size_t at = 0;
    for (; texts != NULL && *texts != NULL; texts++, (*count)++) {
        size_t n = strlen(*texts) + 1;
        if (to != NULL) memcpy(to + at, *texts, n);
        at += n;
    }
    return at;
}

uint8_t *kolorun_spec_encode(const kolorun_spec_t *spec, uint32_t *bytes)
{
    const char *dir = spec->dir != NULL ? spec->dir : "";
    uint32_t argc = 0, nenv = 0;
    size_t dir_bytes = strlen(dir) + 1;
    size_t arg_bytes = add_texts(NULL, spec->argv, &argc), env_bytes = add_texts(NULL, spec->env, &nenv);
    size_t total = SPEC_HEADER + dir_bytes + arg_bytes + env_bytes;
    uint8_t *data = total <= KOLORUN_FRAME_MAX ? malloc(total) : NULL;
    if (data == NULL) return NULL;
    put32(data, spec->input);
    put32(data + 4, argc);
    put32(data + 8, nenv);
    uint8_t *texts = data + SPEC_HEADER;
    memcpy(texts, dir, dir_bytes);
    add_texts(texts + dir_bytes, spec->argv, &argc);
    add_texts(texts + dir_bytes + arg_bytes, spec->env, &nenv);
    *bytes = (uint32_t)total;
    return data;
}

bool kolorun_spec_decode(const uint8_t *data, size_t bytes, kolorun_spec_t *spec)
{
    if (bytes < SPEC_HEADER + 1 || data[bytes - 1] != 0) return false;
    uint32_t input = get32(data), argc = get32(data + 4), nenv = get32(data + 8);
    /* Each text takes a byte at least, so the counts cannot ask for more memory than came in, times a pointer. */
    if (input > 1 || argc == 0 || argc > bytes || nenv > bytes) return false;
    char **list = calloc((size_t)argc + nenv + 2, sizeof *list);
    if (list == NULL) return false;
    char *text = (char *)(uintptr_t)(data + SPEC_HEADER), *end = (char *)(uintptr_t)(data + bytes);
    const char *dir = text;
    uint32_t i = 0;
    for (text += strlen(text) + 1; text < end && i < argc + nenv; text += strlen(text) + 1, i++) {
        list[i < argc ? i : i + 1] = text;
        if (i >= argc && (text[0] == '=' || strchr(text, '=') == NULL)) break;
    }
    if (i != argc + nenv || text != end) {
        free(list);
        return false;
    }
    *spec = (kolorun_spec_t){.dir = dir, .argv = list, .env = list + argc + 1, .input = input != 0};
    return true;
}

bool kolorun_file_name_ok(const char *name)
{
    if (name[0] == '\0' || name[0] == '.') return false;
    for (const char *c = name; *c; c++)
        if (!(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') && !(*c >= '0' && *c <= '9') && *c != '.' &&
            *c != '_' && *c != '-')
            return false;
    return true;
}

bool kolorun_file_decode(const kolorun_frame_t *frame, const char **name, const uint8_t **content, size_t *bytes)
{
    const uint8_t *end =
        memchr(frame->data, 0, frame->bytes < KOLORUN_FILE_NAME_MAX ? frame->bytes : KOLORUN_FILE_NAME_MAX);
    if (end == NULL || !kolorun_file_name_ok((const char *)frame->data)) return false;
    size_t left = frame->bytes - (size_t)(end + 1 - frame->data);
    if (left > KOLORUN_FILE_MAX) return false;
    *name = (const char *)frame->data;
    *content = end + 1;
    *bytes = left;
    return true;
}
