/* SPDX-License-Identifier: Apache-2.0
 *
 * Text that came from outside (another rank, a file, another user's process) and is to be printed. Control
 * characters could lead the reader's terminal or forge lines. All such text goes through here where it is taken in;
 * errors and log lines go through it once more, as a whole.
 */
#ifndef KOLO_BASE_PLAIN_H
#define KOLO_BASE_PLAIN_H

#include <stdbool.h>
#include <stddef.h>

/* Copies text up to a zero, at most `most` bytes of it, cut to fit `room` (not 0), terminated. What is no UTF-8 and
 * control characters (U+0000 to U+001F, U+007F to U+009F) become '?'. Never splits a character. Returns `to`, which
 * may be `from`. */
char *kolo_plain_copy(char *to, size_t room, const void *from, size_t most);
/* Does the same in place, but newlines and tabs stay: for a message of our own that has others' words in it. */
void kolo_plain_lines(char *text);
/* Tells whether text[0..length) is this word, in capitals or not, whatever the program's locale: strcasecmp() takes
 * I and i for two letters in a Turkish one, and there INFO is not info. */
bool kolo_plain_is_word(const char *text, size_t length, const char *word);

#endif
