/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what kolorun and its agents read from each other, and lists of hosts from files and scripts. The first
 * byte chooses; what a decoder accepts must hold together when it is walked and encoded again.
 */
#include "kolorun_frame.h"
#include "kolorun_hostlist.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk_spec(const uint8_t *data, size_t size)
{
    kolorun_spec_t spec, again;
    uint32_t bytes;
    if (!kolorun_spec_decode(data, size, &spec)) return;
    uint8_t *encoded = kolorun_spec_encode(&spec, &bytes);
    if (encoded == NULL || bytes != size || memcmp(encoded, data, size) != 0) abort();
    if (!kolorun_spec_decode(encoded, bytes, &again)) abort();
    free(again.argv);
    free(encoded);
    free(spec.argv);
}

static void walk_frames(const uint8_t *data, size_t size)
{
    size_t at = 0;
    int64_t bytes;
    kolorun_frame_t frame;
    while ((bytes = kolorun_frame_parse(data + at, size - at, &frame)) > 0) {
        const char *name;
        const uint8_t *content;
        size_t content_bytes;
        int32_t number;
        if ((size_t)bytes > size - at) abort();
        kolorun_frame_number(&frame, &number);
        if (kolorun_file_decode(&frame, &name, &content, &content_bytes) &&
            (strchr(name, '/') != NULL || content + content_bytes != frame.data + frame.bytes))
            abort();
        if (frame.type == KOLORUN_START) walk_spec(frame.data, frame.bytes);
        at += (size_t)bytes;
    }
}

static void walk_hosts(const uint8_t *data, size_t size)
{
    kolorun_hostlist_t list = {0};
    char why[200] = "";
    long slots = 0;
    bool ok = kolorun_hostlist_add(&list, (const char *)data, size, why, sizeof why);
    if (!ok && why[0] == '\0') abort();
    for (int i = 0; i < list.count; i++) {
        if (list.hosts[i].slots < 1 || list.hosts[i].name[0] == '\0' || list.hosts[i].name[0] == '-') abort();
        slots += list.hosts[i].slots;
    }
    if (slots != list.slots) abort();
    kolorun_hostlist_fini(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] % 3 == 0) walk_frames(data + 1, size - 1);
    if (data[0] % 3 == 1) walk_spec(data + 1, size - 1);
    if (data[0] % 3 == 2) walk_hosts(data + 1, size - 1);
    return 0;
}
