/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters. Each module has one table of rows (key, kind, default, range, help, where the value goes); all tables
 * are listed in comm/params.c, parsed once from the environment on the first call into the library, printed by
 * kolo-info and turned into the manual page. There is no other getenv().
 */
#ifndef KOLO_BASE_PARAMS_H
#define KOLO_BASE_PARAMS_H

#include "base/status.h"

#include <stdbool.h>

typedef enum {
    KOLO_PARAM_INT,  /* int64_t, decimal or 0x */
    KOLO_PARAM_SIZE, /* int64_t, with suffix K, M, G (powers of 1024) */
    KOLO_PARAM_BOOL, /* bool: 0/1, false/true, no/yes, off/on */
    KOLO_PARAM_STR,  /* const char *; NULL when the default is NULL and nothing was set */
    KOLO_PARAM_ENUM, /* int64_t: index into `choices` */
    /* As STR, and it names a file, a directory or a library that is read, written or loaded. In a program that has
     * other rights than its caller (set-user-id: AT_SECURE) it is not taken from the environment: that is the
     * caller's. */
    KOLO_PARAM_FILE
} kolo_param_kind_t;

typedef struct {
    const char *key; /* full environment name, KOLO_... */
    kolo_param_kind_t kind;
    const char *def;     /* default, as text */
    int64_t min, max;    /* for INT and SIZE */
    const char *choices; /* for ENUM: "auto|ring|tree" */
    bool must_agree;     /* all ranks of a communicator must have the same value */
    const char *help;    /* one sentence, units included */
    void *value;         /* static storage of the kind's type */
} kolo_param_t;

typedef struct {
    const char *module;
    const kolo_param_t *rows;
    size_t count;
    /* NULL, or: is this text right for a row of kind STR that has a grammar? Ends in kolo_param_refuse() if not. */
    kolo_status_t (*check)(const kolo_param_t *row, const char *text);
} kolo_param_table_t;

typedef const char *(*kolo_param_lookup_t)(const char *key, void *arg);

/* Parses every row: `lookup` gives the text or NULL (pass NULL for the environment, where an empty text is none). A
 * bad text is an error that names key, text and what is allowed; values of earlier rows are then set, later ones
 * have their defaults. */
kolo_status_t kolo_params_load(const kolo_param_table_t *const *tables, size_t ntables, kolo_param_lookup_t lookup,
                               void *arg);
/* Sets where texts come from that the environment does not have: libnccl.so.2's users set NCCL's variables. Before
 * the first load. */
void kolo_params_set_fallback(const char *(*lookup)(const char *key));
/* Returns the text of a variable, NULL if it is not set or empty; and each one whose name begins so. */
const char *kolo_environment(const char *key);
void kolo_environment_each(const char *prefix, void (*fn)(const char *key, size_t length));
/* Warns about each KOLO_ variable in the environment that no table knows, or that is not read because the program
 * has other rights than its caller. */
void kolo_params_warn_unknown(const kolo_param_table_t *const *tables, size_t ntables);
/* Prints the current value into buf, for kolo-info and for must-agree checks. */
void kolo_param_print(const kolo_param_t *row, char *buf, size_t bytes);
/* Does its value come from the environment? For kolo-info, which says where each value came from. */
bool kolo_param_in_environment(const kolo_param_t *row);
/* Fails for an invalid text: names the key, the text and what is allowed. */
kolo_status_t kolo_param_refuse(const kolo_param_t *row, const char *text, const char *allowed);
/* Parses one text into the row's value. */
kolo_status_t kolo_param_parse(const kolo_param_t *row, const char *text);
/* Returns a hash over keys and values of all must_agree rows. */
uint64_t kolo_params_agree_hash(const kolo_param_table_t *const *tables, size_t ntables);

/* Loads all tables of the library from the environment, opens the log, warns about unknown names, once; every
 * public call that can be the first comes here, and the first one's result is repeated. It lies where all tables
 * are known (comm/params.c). */
kolo_status_t kolo_comm_library_init(void);

#define KOLO_COUNTOF(a) (sizeof(a) / sizeof((a)[0]))

extern const kolo_param_table_t kolo_base_params; /* log level and file, wait behaviour */
/* Opens the log as the base table's values say. Called once after loading. */
kolo_status_t kolo_params_apply_base(void);

#endif
