/* SPDX-License-Identifier: Apache-2.0
 *
 * Which device and which address, decided without either: lists of devices, kinds of GIDs.
 */
#include "remote/verbs/verbs.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* Compares with one name[:port] of a list. */
static bool fits(const char *item, size_t length, bool whole, const char *device, int port)
{
    const char *colon = memchr(item, ':', length);
    size_t name = colon ? (size_t)(colon - item) : length;
    if (name == 0) return false;
    if (strncmp(item, device, name) != 0 || (whole && device[name])) return false;
    return !colon || atoi(colon + 1) == port;
}

bool kolo_verbs_admits(const char *list, const char *device, int port)
{
    if (!list || !*list) return true;
    bool others = *list == '^', found = false;
    list += others;
    bool whole = *list == '=';
    list += whole;
    while (*list && !found) {
        size_t length = strcspn(list, ",");
        found = fits(list, length, whole, device, port);
        list += length + (list[length] == ',');
    }
    return found != others;
}

int kolo_verbs_gid_rank(const uint8_t gid[16], uint32_t type)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}, nothing[16] = {0};
    bool is_ipv4 = memcmp(gid, mapped, sizeof mapped) == 0, is_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
    if (memcmp(gid, nothing, sizeof nothing) == 0) return 0;
    if (type == IBV_GID_TYPE_ROCE_V2) return is_ipv4 ? 6 : is_local ? 4 : 5;
    if (type == IBV_GID_TYPE_ROCE_V1) return is_ipv4 ? 3 : is_local ? 1 : 2;
    return 1; /* InfiniBand: found by its LID */
}

void kolo_verbs_gid_text(const uint8_t gid[16], char *text, size_t bytes)
{
    if (!inet_ntop(AF_INET6, gid, text, (socklen_t)bytes) && bytes) text[0] = '\0';
}
