/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of NCCL's environment variables (env_table.c): what each is in Kolo.
 */
#ifndef KOLO_NCCL_ENV_H
#define KOLO_NCCL_ENV_H

#include <stddef.h>

typedef enum {
    KOLO_NCCL_ENV_KOLO, /* a parameter of Kolo's, the text through `words` if there are any */
    KOLO_NCCL_ENV_HERE, /* this room reads it */
    KOLO_NCCL_ENV_NONE  /* known; nothing here that it could change */
} kolo_nccl_env_how_t;

typedef struct kolo_nccl_env {
    const char *key;
    kolo_nccl_env_how_t how;
    const char *kolo;  /* the parameter's key */
    const char *words; /* "AF_INET=ipv4|AF_INET6=ipv6": texts that have another word there, "*=": all others */
    const char *help;  /* one sentence: what it does here */
} kolo_nccl_env_t;

extern const kolo_nccl_env_t kolo_nccl_env_table[];
extern const size_t kolo_nccl_env_count;
/* Returns the row of a variable, NULL: unknown. */
const kolo_nccl_env_t *kolo_nccl_env_find(const char *key, size_t length);
/* Translates a row's text by its words, in static storage or `text` itself; NULL: as if it were not set. */
const char *kolo_nccl_env_word(const kolo_nccl_env_t *row, const char *text);

#endif
