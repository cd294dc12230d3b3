/* SPDX-License-Identifier: Apache-2.0
 *
 * Text from outside. See plain.h.
 */
#include "base/text/plain.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Returns the bytes of the character at c, of which `most` may be read; 0: it is none, or must not be printed. */
static size_t character(const uint8_t *c, size_t most)
{
    size_t n = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : *c < 0xf5 ? 4 : 0;
    if (n > most) return 0;
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    bool control = n == 1 ? *c < 32 || *c == 127 : n == 2 && c[0] == 0xc2 && c[1] < 0xa0;
    return control ? 0 : n;
}

static size_t copy(char *to, size_t room, const uint8_t *from, size_t most, const char *kept)
{
    size_t at = 0;
    for (size_t i = 0, n; i < most && from[i]; i += n ? n : 1) {
        n = character(from + i, most - i);
        size_t bytes = n ? n : 1;
        if (at + bytes >= room) break;
        if (n || strchr(kept, from[i]))
            memmove(to + at, from + i, bytes);
        else
            to[at] = '?';
        at += bytes;
    }
    to[at] = '\0';
    return at;
}

char *kolo_plain_copy(char *to, size_t room, const void *from, size_t most)
{
    copy(to, room, from, most, "");
    return to;
}

void kolo_plain_lines(char *text)
{
    size_t n = strlen(text);
    copy(text, n + 1, (const uint8_t *)text, n, "\n\t");
}

static char small(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool kolo_plain_is_word(const char *text, size_t length, const char *word)
{
    for (size_t i = 0; i < length; i++)
        if (!word[i] || small(text[i]) != small(word[i])) return false;
    return word[length] == '\0';
}
