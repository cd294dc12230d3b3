/* SPDX-License-Identifier: Apache-2.0
 *
 * The XML reader of xml.h. One pass, no look-back, no recursion: what a hostile file can cost is its length.
 */
#include "topo/xml.h"

#include <string.h>

void kolo_xml_init(kolo_xml_t *xml, const char *bytes, size_t count, const char *origin)
{
    memset(xml, 0, sizeof *xml);
    xml->start = xml->at = bytes;
    xml->end = bytes + count;
    xml->origin = origin;
}

kolo_status_t kolo_xml_fail(const kolo_xml_t *xml, const char *what)
{
    size_t line = 1;
    for (const char *p = xml->start; p < xml->at; p++) line += *p == '\n';
    return kolo_fail(KOLO_ERR_PROTOCOL, "topology XML %s, line %zu: %s", xml->origin, line, what);
}

bool kolo_xml_is(kolo_xml_text_t text, const char *word)
{
    return strlen(word) == text.bytes && (!text.bytes || memcmp(text.at, word, text.bytes) == 0);
}

const kolo_xml_text_t *kolo_xml_attr(const kolo_xml_t *xml, const char *key)
{
    for (int i = 0; i < xml->nattrs; i++)
        if (kolo_xml_is(xml->keys[i], key)) return &xml->values[i];
    return NULL;
}

int64_t kolo_xml_number(const kolo_xml_t *xml, const char *key, int64_t max, int64_t fallback)
{
    const kolo_xml_text_t *text = kolo_xml_attr(xml, key);
    if (!text || text->bytes == 0 || text->bytes > 18) return fallback; /* 18 digits fit an int64_t */
    int64_t value = 0;
    for (size_t i = 0; i < text->bytes; i++) {
        if (text->at[i] < '0' || text->at[i] > '9') return fallback;
        value = value * 10 + (text->at[i] - '0');
    }
    return value <= max ? value : fallback;
}

/* Returns one character of `text` at *at, entities decoded. */
static char decode(kolo_xml_text_t text, size_t *at)
{
    static const struct {
        const char *name;
        char value;
    } entities[] = {{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++) {
        size_t n = strlen(entities[i].name);
        if (text.bytes - *at >= n && memcmp(text.at + *at, entities[i].name, n) == 0) {
            *at += n;
            return entities[i].value;
        }
    }
    return text.at[(*at)++];
}

void kolo_xml_copy(kolo_xml_text_t text, char *out, size_t bytes)
{
    size_t n = 0, at = 0;
    while (at < text.bytes && n + 1 < bytes) {
        char c = decode(text, &at);
        out[n++] = c >= ' ' && c <= '~' ? c : '?';
    }
    out[n] = 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == ':' || c == '.';
}

static void skip_space(kolo_xml_t *xml)
{
    while (xml->at < xml->end && is_space(*xml->at)) xml->at++;
}

static bool accept(kolo_xml_t *xml, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(xml->end - xml->at) < n || memcmp(xml->at, word, n) != 0) return false;
    xml->at += n;
    return true;
}

static kolo_xml_text_t read_name(kolo_xml_t *xml)
{
    kolo_xml_text_t name = {xml->at, 0};
    while (xml->at < xml->end && is_name(*xml->at)) xml->at++;
    name.bytes = (size_t)(xml->at - name.at);
    return name;
}

/* Moves behind the next `word`. */
static kolo_status_t skip_past(kolo_xml_t *xml, const char *word)
{
    size_t n = strlen(word);
    const char *found = memmem(xml->at, (size_t)(xml->end - xml->at), word, n);
    if (!found) return kolo_xml_fail(xml, "a comment or declaration does not end");
    xml->at = found + n;
    return KOLO_OK;
}

static kolo_status_t read_attribute(kolo_xml_t *xml)
{
    if (xml->nattrs == KOLO_XML_MAX_ATTRS) return kolo_xml_fail(xml, "an element has too many attributes");
    kolo_xml_text_t key = read_name(xml), value;
    skip_space(xml);
    if (!key.bytes || !accept(xml, "=")) return kolo_xml_fail(xml, "expected an attribute key=\"value\"");
    skip_space(xml);
    char quote = xml->at < xml->end ? *xml->at : 0;
    if (quote != '"' && quote != '\'') return kolo_xml_fail(xml, "an attribute's value is not in quotes");
    value.at = ++xml->at;
    while (xml->at < xml->end && *xml->at != quote && *xml->at != '<') xml->at++;
    if (xml->at == xml->end || *xml->at != quote) return kolo_xml_fail(xml, "an attribute's value does not end");
    value.bytes = (size_t)(xml->at++ - value.at);
    for (int i = 0; i < xml->nattrs; i++)
        if (xml->keys[i].bytes == key.bytes && memcmp(xml->keys[i].at, key.at, key.bytes) == 0)
            return kolo_xml_fail(xml, "an attribute is given twice");
    xml->keys[xml->nattrs] = key;
    xml->values[xml->nattrs++] = value;
    return KOLO_OK;
}

static kolo_status_t read_open(kolo_xml_t *xml, kolo_xml_event_t *event)
{
    xml->nattrs = 0;
    xml->name = read_name(xml);
    if (!xml->name.bytes) return kolo_xml_fail(xml, "'<' is not followed by a name");
    if (xml->depth == 0 && xml->root_seen) return kolo_xml_fail(xml, "a second root element");
    if (xml->depth == KOLO_XML_MAX_DEPTH) return kolo_xml_fail(xml, "elements are nested too deeply");
    for (;;) {
        const char *before = xml->at;
        skip_space(xml);
        xml->close_pending = accept(xml, "/>");
        if (xml->close_pending || accept(xml, ">")) break;
        if (xml->at == before) return kolo_xml_fail(xml, "expected a space, '>' or '/>' inside an element");
        KOLO_TRY(read_attribute(xml));
    }
    xml->root_seen = true;
    xml->stack[xml->depth++] = xml->name;
    *event = KOLO_XML_OPEN;
    return KOLO_OK;
}

static kolo_status_t read_close(kolo_xml_t *xml, kolo_xml_event_t *event)
{
    kolo_xml_text_t name = read_name(xml);
    skip_space(xml);
    if (!accept(xml, ">")) return kolo_xml_fail(xml, "a closing tag does not end");
    if (xml->depth == 0) return kolo_xml_fail(xml, "a closing tag without an element");
    kolo_xml_text_t open = xml->stack[--xml->depth];
    if (open.bytes != name.bytes || memcmp(open.at, name.at, name.bytes) != 0)
        return kolo_xml_fail(xml, "a closing tag does not match its element");
    *event = KOLO_XML_CLOSE;
    return KOLO_OK;
}

kolo_status_t kolo_xml_next(kolo_xml_t *xml, kolo_xml_event_t *event)
{
    if (xml->close_pending) {
        xml->close_pending = false;
        xml->depth--;
        *event = KOLO_XML_CLOSE;
        return KOLO_OK;
    }
    for (;;) {
        size_t left = (size_t)(xml->end - xml->at);
        const char *tag = left ? memchr(xml->at, '<', left) : NULL;
        xml->at = tag ? tag + 1 : xml->end;
        if (!tag) {
            if (xml->depth) return kolo_xml_fail(xml, "ends before its elements do (cut off?)");
            if (!xml->root_seen) return kolo_xml_fail(xml, "holds no element at all");
            *event = KOLO_XML_END;
            return KOLO_OK;
        }
        if (accept(xml, "!--")) {
            KOLO_TRY(skip_past(xml, "-->"));
        } else if (accept(xml, "?")) {
            KOLO_TRY(skip_past(xml, "?>"));
        } else if (accept(xml, "!DOCTYPE")) {
            const char *from = xml->at;
            KOLO_TRY(skip_past(xml, ">"));
            if (memchr(from, '[', (size_t)(xml->at - from)))
                return kolo_xml_fail(xml, "definitions inside the DOCTYPE are refused");
        } else if (accept(xml, "/")) {
            return read_close(xml, event);
        } else {
            return read_open(xml, event);
        }
    }
}
