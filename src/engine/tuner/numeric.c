/* SPDX-License-Identifier: Apache-2.0
 *
 * See numeric.h. Types come from the libraries' own headers, so a call that does not fit fails to compile.
 */
#include "engine/tuner/numeric.h"

#ifdef KOLO_HAVE_NUMERIC

#include <dlfcn.h>
#include <lapacke.h>
#include <nlopt.h>
#include <stdbool.h>
#include <stdlib.h>

#define LAPACKE_FILE "liblapacke.so.3"
#define NLOPT_FILE   "libnlopt.so.0"

struct kolo_numeric {
    void *lapacke, *nlopt;
    __typeof__(&LAPACKE_dpotrf) dpotrf;
    __typeof__(&LAPACKE_dpotrs) dpotrs;
    __typeof__(&LAPACKE_dtrtrs) dtrtrs;
    __typeof__(&nlopt_create) create;
    __typeof__(&nlopt_destroy) destroy;
    __typeof__(&nlopt_set_max_objective) set_objective;
    __typeof__(&nlopt_set_lower_bounds) set_lower;
    __typeof__(&nlopt_set_upper_bounds) set_upper;
    __typeof__(&nlopt_set_maxeval) set_calls;
    __typeof__(&nlopt_set_xtol_rel) set_tolerance;
    __typeof__(&nlopt_optimize) optimize;
};

static kolo_status_t find(void *library, const char *file, const char *symbol, void *pointer)
{
    void *p = dlsym(library, symbol);
    if (!p) return kolo_fail(KOLO_ERR_UNSUPPORTED, "autotune: %s has no function %s", file, symbol);
    *(void **)pointer = p;
    return KOLO_OK;
}

static kolo_status_t load(const char *file, const char *package, void **library)
{
    *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (*library) return KOLO_OK;
    const char *why = dlerror();
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "autotune: cannot load %s (Debian: %s): %s", file, package,
                     why ? why : "no reason given");
}

static kolo_status_t fill(kolo_numeric_t *n)
{
    KOLO_TRY(load(LAPACKE_FILE, "liblapacke", &n->lapacke));
    KOLO_TRY(load(NLOPT_FILE, "libnlopt0", &n->nlopt));
    KOLO_TRY(find(n->lapacke, LAPACKE_FILE, "LAPACKE_dpotrf", &n->dpotrf));
    KOLO_TRY(find(n->lapacke, LAPACKE_FILE, "LAPACKE_dpotrs", &n->dpotrs));
    KOLO_TRY(find(n->lapacke, LAPACKE_FILE, "LAPACKE_dtrtrs", &n->dtrtrs));
    KOLO_TRY(find(n->nlopt, NLOPT_FILE, "nlopt_create", &n->create));
    KOLO_TRY(find(n->nlopt, NLOPT_FILE, "nlopt_destroy", &n->destroy));
    KOLO_TRY(find(n->nlopt, NLOPT_FILE, "nlopt_set_max_objective", &n->set_objective));
    KOLO_TRY(find(n->nlopt, NLOPT_FILE, "nlopt_set_lower_bounds", &n->set_lower));
    KOLO_TRY(find(n->nlopt, NLOPT_FILE, "nlopt_set_upper_bounds", &n->set_upper));
    KOLO_TRY(find(n->nlopt, NLOPT_FILE, "nlopt_set_maxeval", &n->set_calls));
    KOLO_TRY(find(n->nlopt, NLOPT_FILE, "nlopt_set_xtol_rel", &n->set_tolerance));
    return find(n->nlopt, NLOPT_FILE, "nlopt_optimize", &n->optimize);
}

kolo_status_t kolo_numeric_open(kolo_numeric_t **numeric)
{
    kolo_numeric_t *n = calloc(1, sizeof *n);
    if (!n) return kolo_fail(KOLO_ERR_NO_MEMORY, "autotune: out of memory");
    kolo_status_t status = fill(n);
    if (status == KOLO_OK)
        *numeric = n;
    else
        kolo_numeric_close(n);
    return status;
}

void kolo_numeric_close(kolo_numeric_t *n)
{
    if (!n) return;
    if (n->nlopt) dlclose(n->nlopt);
    if (n->lapacke) dlclose(n->lapacke);
    free(n);
}

kolo_status_t kolo_numeric_cholesky(kolo_numeric_t *numeric, int n, double *a)
{
    return numeric->dpotrf(LAPACK_COL_MAJOR, 'U', n, a, n) == 0 ? KOLO_OK : KOLO_ERR_INTERNAL;
}

kolo_status_t kolo_numeric_solve(kolo_numeric_t *numeric, int n, const double *factor, double *b)
{
    return numeric->dpotrs(LAPACK_COL_MAJOR, 'U', n, 1, factor, n, b, n) == 0 ? KOLO_OK : KOLO_ERR_INTERNAL;
}

kolo_status_t kolo_numeric_solve_half(kolo_numeric_t *numeric, int n, const double *factor, double *b)
{
    return numeric->dtrtrs(LAPACK_COL_MAJOR, 'U', 'T', 'N', n, 1, factor, n, b, n) == 0 ? KOLO_OK
                                                                                        : KOLO_ERR_INTERNAL;
}

kolo_status_t kolo_numeric_maximize(kolo_numeric_t *numeric, const kolo_numeric_search_t *s, double *x)
{
    double value = 0;
    nlopt_opt search = numeric->create(NLOPT_LN_SBPLX, (unsigned)s->dims);
    if (!search) return kolo_fail(KOLO_ERR_NO_MEMORY, "autotune: NLopt makes no search");
    bool set = numeric->set_objective(search, s->fn, s->arg) >= 0 && numeric->set_lower(search, s->lower) >= 0 &&
               numeric->set_upper(search, s->upper) >= 0 && numeric->set_calls(search, s->calls) >= 0 &&
               numeric->set_tolerance(search, 1e-4) >= 0;
    nlopt_result result = set ? numeric->optimize(search, x, &value) : NLOPT_INVALID_ARGS;
    numeric->destroy(search);
    if (result >= 0 || result == NLOPT_ROUNDOFF_LIMITED) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INTERNAL, "autotune: NLopt's search fails with %d", (int)result);
}

#else

static kolo_status_t absent(void)
{
    return kolo_fail(KOLO_ERR_UNSUPPORTED,
                     "autotune: this build has no LAPACKE or no NLopt (meson option autotune); build with them");
}

kolo_status_t kolo_numeric_open(kolo_numeric_t **numeric)
{
    (void)numeric;
    return absent();
}

void kolo_numeric_close(kolo_numeric_t *n)
{
    (void)n;
}

kolo_status_t kolo_numeric_cholesky(kolo_numeric_t *numeric, int n, double *a)
{
    (void)numeric, (void)n, (void)a;
    return absent();
}

kolo_status_t kolo_numeric_solve(kolo_numeric_t *numeric, int n, const double *factor, double *b)
{
    (void)numeric, (void)n, (void)factor, (void)b;
    return absent();
}

kolo_status_t kolo_numeric_solve_half(kolo_numeric_t *numeric, int n, const double *factor, double *b)
{
    (void)numeric, (void)n, (void)factor, (void)b;
    return absent();
}

kolo_status_t kolo_numeric_maximize(kolo_numeric_t *numeric, const kolo_numeric_search_t *s, double *x)
{
    (void)numeric, (void)s, (void)x;
    return absent();
}

#endif
