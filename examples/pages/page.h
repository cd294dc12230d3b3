/* SPDX-License-Identifier: Apache-2.0
 *
 * What the examples of the manual pages share. Each function of these programs is the example of the page of the
 * function that it is named after, and of others that it calls (scripts/gen-man); the tests run all of them.
 */
#ifndef KOLO_EXAMPLES_PAGE_H
#define KOLO_EXAMPLES_PAGE_H

#include <stdio.h>
#include <stdlib.h>

/* Returns what is not KOLO_OK to the caller. */
#define TRY(call)                                                                                                  \
    do {                                                                                                           \
        kolo_status_t status_ = (call);                                                                            \
        if (status_ != KOLO_OK) return status_;                                                                    \
    } while (0)

/* What holds at this point; the program ends if it does not. */
#define EXPECT(what)                                                                                               \
    do {                                                                                                           \
        if (!(what)) {                                                                                             \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                     \
            exit(1);                                                                                               \
        }                                                                                                          \
    } while (0)

/* Calls a function of an example, and ends the program with its name and the message if it fails. */
#define SHOW(function, ...)                                                                                        \
    do {                                                                                                           \
        if (function(__VA_ARGS__) != KOLO_OK) {                                                                    \
            fprintf(stderr, "%s: %s\n", #function, kolo_get_last_error(NULL));                                     \
            exit(1);                                                                                               \
        }                                                                                                          \
    } while (0)

#endif
