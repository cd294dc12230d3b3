/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of tensors as text and taken apart. There is exactly one text for each key, so that two ends may compare
 * texts: no leading zeros, no capitals in hexadecimal numbers, nothing before or behind. See key.h.
 */
#include "rendezvous/key.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What is left to read. */
typedef struct {
    const char *at, *end;
} text_t;

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-' || c == '.';
}

static bool take_word(text_t *text, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(text->end - text->at) < n || memcmp(text->at, word, n) != 0) return false;
    text->at += n;
    return true;
}

static bool take_name(text_t *text)
{
    const char *begin = text->at;
    while (text->at < text->end && is_name_char(*text->at)) text->at++;
    return text->at > begin;
}

static bool take_number(text_t *text, uint64_t *number)
{
    const char *begin = text->at;
    uint64_t n = 0;
    for (; text->at < text->end && is_digit(*text->at); text->at++) {
        uint64_t digit = (uint64_t)(*text->at - '0');
        if (n > (UINT64_MAX - digit) / 10) return false;
        n = 10 * n + digit;
    }
    *number = n;
    return text->at > begin && (*begin != '0' || text->at == begin + 1);
}

static bool take_hex(text_t *text, uint64_t *number)
{
    uint64_t n = 0;
    if (text->end - text->at != 16) return false;
    for (; text->at < text->end; text->at++) {
        char c = *text->at;
        if (!is_digit(c) && (c < 'a' || c > 'f')) return false;
        n = n << 4 | (uint64_t)(is_digit(c) ? c - '0' : c - 'a' + 10);
    }
    *number = n;
    return true;
}

/* Numbers in names have nine digits at most, so that every reader has room for them. */
static bool take_index(text_t *text)
{
    const char *begin = text->at;
    uint64_t n;
    return take_number(text, &n) && text->at - begin <= 9;
}

static const char *take_task(text_t *text)
{
    const char *begin = text->at;
    if (!take_word(text, "/job:")) return "it does not begin with /job:";
    if (!take_name(text)) return "its job has no name";
    if (take_word(text, "/replica:") && !take_index(text)) return "its replica is no number";
    if (!take_word(text, "/task:")) return "/task: is missing";
    if (!take_index(text)) return "its task is no number";
    return text->at - begin > KOLO_TASK_NAME_MAX ? "the task's name is too long" : NULL;
}

static const char *take_device(text_t text, char device[KOLO_DEVICE_NAME_MAX + 1])
{
    size_t n = (size_t)(text.end - text.at);
    const char *begin = text.at, *wrong = take_task(&text);
    if (wrong) return wrong;
    if (!take_word(&text, "/device:")) return "/device: is missing";
    if (!take_name(&text)) return "its device has no type";
    if (!take_word(&text, ":") || !take_index(&text)) return "its device has no number";
    if (text.at != text.end) return "something follows the device";
    if (n > KOLO_DEVICE_NAME_MAX) return "it is too long";
    memcpy(device, begin, n);
    device[n] = '\0';
    return NULL;
}

static const char *take_edge(text_t text, char edge[KOLO_EDGE_NAME_MAX + 1])
{
    size_t n = (size_t)(text.end - text.at);
    if (n == 0) return "the edge has no name";
    if (n > KOLO_EDGE_NAME_MAX) return "the edge's name is too long";
    for (const char *c = text.at; c < text.end; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f || *c == ';') return "the edge's name has a control character";
    memcpy(edge, text.at, n);
    edge[n] = '\0';
    return NULL;
}

static const char *take_place(text_t text, kolo_tensor_key_t *key)
{
    if (!take_number(&text, &key->frame)) return "the frame is no number";
    if (!take_word(&text, ":") || !take_number(&text, &key->iteration)) return "the iteration is no number";
    return text.at == text.end ? NULL : "something follows the iteration";
}

/* Most keys of a thread have the source and destination of the one before: those are taken apart once. */
typedef struct {
    size_t bytes; /* of the text, up to the semicolon ahead of the edge; 0: there is none */
    char text[2 * KOLO_DEVICE_NAME_MAX + 24];
    kolo_tensor_key_t key; /* without edge and place */
} ways_t;
static _Thread_local ways_t last;

static const char *take_rest(const char *at, const char *end, kolo_tensor_key_t *key)
{
    const char *semicolon = memchr(at, ';', (size_t)(end - at));
    if (semicolon == NULL) return "it has not five parts";
    if (memchr(semicolon + 1, ';', (size_t)(end - semicolon - 1)))
        return "it has more than five parts: no name may have a ; in it";
    const char *wrong = take_edge((text_t){at, semicolon}, key->edge_name);
    return wrong ? wrong : take_place((text_t){semicolon + 1, end}, key);
}

/* Takes a key apart, up to the edge. */
static const char *take_ways(const char *at, const char *end, ways_t *ways)
{
    text_t parts[3];
    const char *begin = at;
    for (int i = 0; i < 3; i++) {
        const char *semicolon = memchr(at, ';', (size_t)(end - at));
        if (semicolon == NULL) return "it has not five parts";
        parts[i] = (text_t){at, semicolon};
        at = semicolon + 1;
    }
    memset(&ways->key, 0, sizeof ways->key);
    const char *wrong = take_device(parts[0], ways->key.src_device);
    if (wrong) return wrong;
    if (!take_hex(&parts[1], &ways->key.src_incarnation)) return "the incarnation is not 16 hexadecimal digits";
    wrong = take_device(parts[2], ways->key.dst_device);
    if (wrong) return wrong;
    ways->bytes = (size_t)(at - begin);
    memcpy(ways->text, begin, ways->bytes);
    return NULL;
}

const char *kolo_rendezvous_key_decode(const char *bytes, size_t length, kolo_tensor_key_t *key)
{
    if (length > KOLO_TENSOR_KEY_MAX) return "it is too long";
    if (last.bytes == 0 || length < last.bytes || memcmp(bytes, last.text, last.bytes) != 0) {
        last.bytes = 0;
        const char *wrong = take_ways(bytes, bytes + length, &last);
        if (wrong) return wrong;
    }
    *key = last.key;
    return take_rest(bytes + last.bytes, bytes + length, key);
}

kolo_status_t kolo_tensor_key_parse(const char *text, kolo_tensor_key_t *key)
{
    kolo_tensor_key_t parsed;
    if (text == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "tensor_key_parse: the text is NULL");
    if (key == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "tensor_key_parse: the result is NULL");
    const char *wrong = kolo_rendezvous_key_decode(text, strnlen(text, KOLO_TENSOR_KEY_MAX + 1), &parsed);
    if (wrong) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "\"%.160s\" is no key: %s", text, wrong);
    *key = parsed;
    return KOLO_OK;
}

kolo_status_t kolo_tensor_key_make(const kolo_tensor_key_t *key, char *text, size_t bytes)
{
    char made[sizeof *key + 96];
    kolo_tensor_key_t again;
    if (key == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "tensor_key_make: the key is NULL");
    if (text == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "tensor_key_make: the result is NULL");
    int n = snprintf(made, sizeof made, "%.*s;%016" PRIx64 ";%.*s;%.*s;%" PRIu64 ":%" PRIu64, KOLO_DEVICE_NAME_MAX,
                     key->src_device, key->src_incarnation, KOLO_DEVICE_NAME_MAX, key->dst_device,
                     KOLO_EDGE_NAME_MAX, key->edge_name, key->frame, key->iteration);
    const char *wrong = kolo_rendezvous_key_decode(made, (size_t)n, &again);
    if (wrong) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "no key can be \"%.160s\": %s", made, wrong);
    if ((size_t)n >= bytes)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "a key of %d bytes does not fit into %zu", n, bytes);
    memcpy(text, made, (size_t)n + 1);
    return KOLO_OK;
}

const char *kolo_task_name_check(const char *name)
{
    text_t text = {name, name + strnlen(name, KOLO_TASK_NAME_MAX + 1)};
    const char *wrong = take_task(&text);
    return wrong ? wrong : text.at == text.end ? NULL : "something follows the task";
}

bool kolo_device_is_of(const char *device, const char *task)
{
    size_t n = strlen(task);
    return strncmp(device, task, n) == 0 && strncmp(device + n, "/device:", 8) == 0;
}

void kolo_device_task(const char *device, char task[KOLO_TASK_NAME_MAX + 1])
{
    const char *end = strstr(device, "/device:");
    size_t n = end ? (size_t)(end - device) : strlen(device);
    if (n > KOLO_TASK_NAME_MAX) n = KOLO_TASK_NAME_MAX;
    memcpy(task, device, n);
    task[n] = '\0';
}
