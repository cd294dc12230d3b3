/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info: the parts behind its options. Each writes to stdout and returns an exit status.
 */
#ifndef KOLO_TOOLS_KOLO_INFO_H
#define KOLO_TOOLS_KOLO_INFO_H

#include "base/params.h"
#include "plan/plan.h"

#define INFO_OK      0
#define INFO_FAILED  1 /* a parameter's text is bad, or something cannot be found out */
#define INFO_USAGE   2
#define INFO_MISSING 3 /* not in this build */

extern const kolo_param_table_t *const *kolo_info_tables(size_t *count);

int kolo_info_overview(void);
int kolo_info_params(bool json);
int kolo_info_topology(void);
/* fabric: what --fabric says, or NULL. */
int kolo_info_explain(const char *coll, const char *size, const char *ranks, int nodes, const char *fabric);
int kolo_info_explain_gpu(const char *coll, const char *size, const char *gpus, bool graph);
int kolo_info_model(const char *coll, const char *gpus, bool graph);
int kolo_info_memory(const char *ranks, int nodes);

/* A collective by its name, also as others write it. */
kolo_status_t kolo_info_coll(const char *name, kolo_coll_t *coll);
/* A whole number from min to max, sizes with K, M, G; says on stderr what is wrong with it. */
bool kolo_info_number(const char *what, const char *text, bool size, int64_t min, int64_t max, int64_t *value);

#endif
