/* SPDX-License-Identifier: Apache-2.0
 *
 * Which executor of the list serves which GPUs, and what is said where none does.
 */
#include "base/test.h"
#include "gpu/gpu.h"

#include <string.h>

static const int host_of[] = {0, 0, 1, 1};
static const kolo_exec_gpus_t all = {
    .nranks = 4, .hosts = 1, .host_of = (const int[4]){0}, .inside = true, .all = true, .reach = "all do"};
static const kolo_exec_gpus_t two_hosts = {
    .nranks = 4, .hosts = 2, .host_of = host_of, .inside = true, .reach = "rank 2 is on another host"};
static const kolo_exec_gpus_t apart = {.nranks = 4, .hosts = 2, .host_of = host_of, .reach = "GPUs are apart"};
static const kolo_exec_gpus_t crowded = {
    .nranks = 4, .hosts = 2, .host_of = host_of, .reach = "GPUs are apart", .crowded = "ranks 0 and 1 share one"};

static void expect(const char *name, const kolo_exec_gpus_t *gpus, const char *want, const char *words)
{
    const kolo_exec_ops_t *exec = NULL;
    char why[KOLO_EXEC_WHY];
    assert_int_equal(kolo_gpu_choose(name, gpus, &exec, why), KOLO_OK);
    assert_string_equal(exec->name, want);
    assert_non_null(strstr(why, words));
}

/* Hosts in order serve, with equally many ranks or not, if there is a host for kernels. */
static void hosts_in_order_are_served_in_levels(void **state)
{
    kolo_exec_gpus_t gpus = two_hosts;
    (void)state;
    gpus.host_of = (const int[4]){0, 0, 0, 1};
    expect("auto", &gpus, "hierarchical", "");
    gpus.host_of = (const int[4]){0, 1, 1, 1};
    expect("auto", &gpus, "hierarchical", "");
    gpus.host_of = (const int[4]){0, 1, 0, 1};
    expect("auto", &gpus, "staged", "numbered host by host");
    gpus.host_of = (const int[4]){0, 1, 2, 3};
    gpus.hosts = 4;
    expect("auto", &gpus, "staged", "no host has two ranks");
}

static void the_first_that_can_serve_is_taken(void **state)
{
    (void)state;
    expect("auto", &all, "cuda", "all do");
    expect("auto", &two_hosts, "hierarchical", "cuda needs");
    expect("auto", &apart, "staged", "GPUs are apart");
}

static void a_name_forces_one(void **state)
{
    (void)state;
    expect("staged", &all, "staged", "");
    expect("Hierarchical", &two_hosts, "hierarchical", "");
    assert_false(kolo_gpu_may_need_kernels("staged"));
    assert_true(kolo_gpu_may_need_kernels("auto"));
}

static void refusals_are_told_with_their_reasons(void **state)
{
    const kolo_exec_ops_t *exec = NULL;
    char why[KOLO_EXEC_WHY];
    (void)state;
    assert_int_equal(kolo_gpu_choose("cuda", &two_hosts, &exec, why), KOLO_ERR_UNSUPPORTED);
    assert_non_null(strstr(kolo_error_text(), "KOLO_GPU_EXECUTOR=cuda"));
    assert_non_null(strstr(kolo_error_text(), "rank 2 is on another host"));
    assert_int_equal(kolo_gpu_choose("auto", &crowded, &exec, why), KOLO_ERR_UNSUPPORTED);
    assert_non_null(strstr(kolo_error_text(), "GPUs are apart"));
    assert_non_null(strstr(kolo_error_text(), "ranks 0 and 1 share one"));
}

static void a_name_that_is_not_in_the_list_is_refused(void **state)
{
    const kolo_param_t row = {.key = "KOLO_GPU_EXECUTOR", .kind = KOLO_PARAM_STR, .help = "which one"};
    (void)state;
    assert_int_equal(kolo_gpu_check_name(&row, "Auto"), KOLO_OK);
    assert_int_equal(kolo_gpu_check_name(&row, "hierarchical"), KOLO_OK);
    assert_int_equal(kolo_gpu_check_name(&row, "stage"), KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_error_text(), "auto|cuda|hierarchical|staged"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_that_can_serve_is_taken),
        cmocka_unit_test(hosts_in_order_are_served_in_levels),
        cmocka_unit_test(a_name_forces_one),
        cmocka_unit_test(refusals_are_told_with_their_reasons),
        cmocka_unit_test(a_name_that_is_not_in_the_list_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
