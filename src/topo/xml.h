/* SPDX-License-Identifier: Apache-2.0
 *
 * A pull reader for the part of XML that machine descriptions use: elements, attributes, the five named entities,
 * comments, processing instructions, a DOCTYPE that only names a file. Text between elements is skipped; entity
 * definitions, CDATA and anything malformed are errors. It allocates nothing and never reads past its bytes.
 */
#ifndef KOLO_TOPO_XML_H
#define KOLO_TOPO_XML_H

#include "base/status.h"

#include <stdbool.h>

#define KOLO_XML_MAX_DEPTH 64
#define KOLO_XML_MAX_ATTRS 48

typedef struct { /* points into the input; not terminated */
    const char *at;
    size_t bytes;
} kolo_xml_text_t;

typedef enum { KOLO_XML_OPEN, KOLO_XML_CLOSE, KOLO_XML_END } kolo_xml_event_t;

typedef struct {
    const char *start, *at, *end;
    const char *origin; /* for messages */
    kolo_xml_text_t stack[KOLO_XML_MAX_DEPTH];
    int depth;
    bool root_seen;
    bool close_pending; /* the last element was <a/>: its close comes next */
    /* the element of the last KOLO_XML_OPEN */
    kolo_xml_text_t name;
    kolo_xml_text_t keys[KOLO_XML_MAX_ATTRS], values[KOLO_XML_MAX_ATTRS];
    int nattrs;
} kolo_xml_t;

void kolo_xml_init(kolo_xml_t *xml, const char *bytes, size_t count, const char *origin);
/* Reads the next event. KOLO_ERR_PROTOCOL, with the line, for what is not well formed. */
kolo_status_t kolo_xml_next(kolo_xml_t *xml, kolo_xml_event_t *event);
/* Fails with KOLO_ERR_PROTOCOL, origin and the line reached. */
kolo_status_t kolo_xml_fail(const kolo_xml_t *xml, const char *what);

bool kolo_xml_is(kolo_xml_text_t text, const char *word);
/* Returns NULL when the last opened element has no such attribute. */
const kolo_xml_text_t *kolo_xml_attr(const kolo_xml_t *xml, const char *key);
/* Returns the attribute as a decimal number; `fallback` when it is missing, malformed or out of [0, max]. */
int64_t kolo_xml_number(const kolo_xml_t *xml, const char *key, int64_t max, int64_t fallback);
/* Copies with entities decoded and unprintable bytes as '?', cut to fit, always terminated. */
void kolo_xml_copy(kolo_xml_text_t text, char *out, size_t bytes);

#endif
