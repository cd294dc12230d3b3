/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of kolorun --min; the others apply, too.
 */
#ifndef KOLO_TOOLS_ELASTIC_OPTIONS_H
#define KOLO_TOOLS_ELASTIC_OPTIONS_H

#include <getopt.h>
#include <stdbool.h>

typedef struct {
    int min, max;         /* min 0: not an elastic job; max 0: no limit */
    const char *discover; /* NULL: the hosts of -H stay */
    double every_s;       /* from an answer of the script to its next start */
    double patience_s;    /* how long it may run */
    double timeout_s;     /* how long fewer than min are borne with */
    double back_off_s, back_off_max_s;
    int reset_limit; /* -1: none */
} elastic_options_t;

#define ELASTIC_OPTION_FIRST 1000
#define ELASTIC_OPTION_ROWS                                                                                        \
    {"min", required_argument, NULL, ELASTIC_OPTION_FIRST},                                                        \
        {"max", required_argument, NULL, ELASTIC_OPTION_FIRST + 1},                                                \
        {"discover", required_argument, NULL, ELASTIC_OPTION_FIRST + 2},                                           \
        {"discover-every", required_argument, NULL, ELASTIC_OPTION_FIRST + 3},                                     \
        {"discover-limit", required_argument, NULL, ELASTIC_OPTION_FIRST + 4},                                     \
        {"elastic-timeout", required_argument, NULL, ELASTIC_OPTION_FIRST + 5},                                    \
        {"back-off", required_argument, NULL, ELASTIC_OPTION_FIRST + 6},                                           \
    {                                                                                                              \
        "reset-limit", required_argument, NULL, ELASTIC_OPTION_FIRST + 7                                           \
    }
#define ELASTIC_OPTION_DEFAULTS                                                                                    \
    {                                                                                                              \
        0, 0, NULL, 1, 10, 600, 1, 600, -1                                                                         \
    }

extern const char elastic_usage[];

/* One of them; false: what is wrong with arg is in *want. */
bool elastic_option_take(elastic_options_t *o, int option, const char *arg, const char **want);
const char *elastic_option_name(int option);
/* NULL, or what does not fit together. */
const char *elastic_options_check(const elastic_options_t *o, bool hosts, bool ranks);

#endif
