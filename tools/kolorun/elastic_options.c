/* SPDX-License-Identifier: Apache-2.0
 *
 * See elastic_options.h.
 */
#include "elastic_options.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>

const char elastic_usage[] =
    "A job whose ranks come and go (for programs on kolo/state.h):\n"
    "       kolorun --min N [--max N] --discover SCRIPT [options] program [arguments]\n"
    "       kolorun --min N -H host:slots,... [options] program [arguments]\n"
    "  --min N         fewest ranks with which the job goes on\n"
    "  --max N         most ranks (default: all slots)\n"
    "  --discover SCRIPT       a command that prints the hosts of now, a host a line: host:slots\n"
    "  --discover-every S      seconds between its runs (default 1)\n"
    "  --discover-limit S      seconds that it may take (default 10)\n"
    "  --elastic-timeout S     end the job when there are fewer than --min for S seconds (default 600)\n"
    "  --back-off S[:MAX]      seconds that a host rests after a failure, doubled each time up to MAX (1:600)\n"
    "  --reset-limit N         end the job when the ranks change more than N times (default: no limit)\n";

static bool whole(const char *text, long min, int *value)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || v < min || v > 65536) return false;
    *value = (int)v;
    return true;
}

/* Seconds; what stands behind them must begin with `stop` (0: be nothing), *rest points at it. */
static bool seconds(const char *text, double min, const char **rest, double *value)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno != 0 || end == text || !(v >= min && v <= 1e8) || (*end != '\0' && !rest)) return false;
    if (rest) *rest = end;
    *value = v;
    return true;
}

static bool back_off(elastic_options_t *o, const char *text)
{
    const char *rest;
    if (!seconds(text, 0, &rest, &o->back_off_s)) return false;
    if (*rest == ':') return seconds(rest + 1, o->back_off_s, NULL, &o->back_off_max_s);
    if (o->back_off_max_s < o->back_off_s) o->back_off_max_s = o->back_off_s;
    return *rest == '\0';
}

bool elastic_option_take(elastic_options_t *o, int option, const char *arg, const char **want)
{
    *want = "seconds";
    switch (option - ELASTIC_OPTION_FIRST) {
    case 0:
    case 1:
        *want = "a whole number from 1 to 65536";
        return whole(arg, 1, option == ELASTIC_OPTION_FIRST ? &o->min : &o->max);
    case 2:
        *want = "a command";
        o->discover = arg;
        return arg[0] != '\0';
    case 3:
        return seconds(arg, 1e-3, NULL, &o->every_s);
    case 4:
        return seconds(arg, 1e-3, NULL, &o->patience_s);
    case 5:
        return seconds(arg, 0, NULL, &o->timeout_s);
    case 6:
        *want = "seconds, or seconds:most seconds";
        return back_off(o, arg);
    default:
        *want = "a whole number from 0 to 65536";
        return whole(arg, 0, &o->reset_limit);
    }
}

const char *elastic_option_name(int option)
{
    static const char *const names[] = {
        "--min",      "--max",        "--discover", "--discover-every", "--discover-limit", "--elastic-timeout",
        "--back-off", "--reset-limit"};
    return names[option - ELASTIC_OPTION_FIRST];
}

const char *elastic_options_check(const elastic_options_t *o, bool hosts, bool ranks)
{
    if (o->min == 0) return o->max || o->discover || o->reset_limit >= 0 ? "--min is missing" : NULL;
    if (o->max != 0 && o->max < o->min) return "--max is less than --min";
    if (ranks) return "-n cannot be used with --min: the hosts' slots say how many ranks there are";
    if (o->discover && hosts) return "--discover cannot be used with -H or --hostfile: the script names the hosts";
    if (!o->discover && !hosts) return "--discover (or -H, for hosts that stay) is missing";
    return NULL;
}
