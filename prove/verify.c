/* SPDX-License-Identifier: Apache-2.0
 *
 * The verifier's entry: one machine per schedule (model.h says why one would do), built from the plans of
 * all ranks, run through the calls, checked against the definition.
 */
#include "prove/model.h"

static kolo_status_t run_once(const kolo_plan_t *const *plans, const kolo_plan_t *const *next, uint32_t nranks,
                              const kolo_verify_options_t *options, kolo_order_t order, uint64_t seed)
{
    kolo_model_t m;
    KOLO_TRY(kolo_model_init(&m, plans, next, nranks, options));
    kolo_status_t status = kolo_model_run(&m, order, seed);
    kolo_model_fini(&m);
    return status;
}

kolo_status_t kolo_prove_verify(const kolo_plan_t *const *plans, uint32_t nranks,
                                const kolo_verify_options_t *options)
{
    static const kolo_verify_options_t defaults;
    if (!options) options = &defaults;
    const kolo_plan_t *const *next = options->next ? options->next : plans;
    uint32_t schedules = options->schedules && options->schedules < 3 ? options->schedules : 3;
    for (uint32_t k = 0; k < schedules; k++) KOLO_TRY(run_once(plans, next, nranks, options, (kolo_order_t)k, 0));
    for (uint32_t k = 0; k < options->random_seeds; k++)
        KOLO_TRY(run_once(plans, next, nranks, options, KOLO_ORDER_RANDOM, options->seed + k));
    return KOLO_OK;
}
