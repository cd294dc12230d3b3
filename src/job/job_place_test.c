/* SPDX-License-Identifier: Apache-2.0
 *
 * What launchers tell, read from their variables.
 */
#include "base/params.h"
#include "base/status.h"
#include "base/test.h"
#include "job/job.h"

#include <string.h>

static kolo_job_place_t place_of(const kolo_job_values_t *values)
{
    kolo_job_place_t place;
    assert_int_equal(kolo_job_place_from(values, &place), KOLO_OK);
    return place;
}

static void expect(const kolo_job_values_t *values, const char *launcher, int rank, int nranks, int local,
                   int local_size)
{
    kolo_job_place_t p = place_of(values);
    assert_string_equal(p.launcher, launcher);
    assert_int_equal(p.rank, rank);
    assert_int_equal(p.nranks, nranks);
    assert_int_equal(p.local_rank, local);
    assert_int_equal(p.local_size, local_size);
}

static void each_launcher_is_known(void **state)
{
    (void)state;
    const kolo_job_values_t none = {0};
    expect(&none, "none", 0, 1, 0, 1);
    const kolo_job_values_t torch = {.torch_rank = "5",
                                     .torch_size = "8",
                                     .torch_local_rank = "1",
                                     .torch_local_size = "4",
                                     .torch_address = "a",
                                     .torch_port = "1"};
    expect(&torch, "torchrun", 5, 8, 1, 4);
    const kolo_job_values_t ompi = {
        .ompi_rank = "2", .ompi_size = "3", .ompi_local_rank = "0", .ompi_local_size = "1"};
    expect(&ompi, "openmpi", 2, 3, 0, 1);
    const kolo_job_values_t kolorun = {.rank = "2", .size = "3", .local_rank = "1", .local_size = "2"};
    expect(&kolorun, "kolorun", 2, 3, 1, 2);
    const kolo_job_values_t pmi = {.pmi_rank = "1", .pmi_size = "2"};
    expect(&pmi, "mpich", 1, 2, -1, 0);
    const kolo_job_values_t mpich = {
        .pmi_rank = "1", .pmi_size = "2", .mpi_local_rank = "1", .mpi_local_size = "2"};
    expect(&mpich, "mpich", 1, 2, 1, 2);
}

static void slurm_tells_tasks_per_host(void **state)
{
    (void)state;
    kolo_job_values_t slurm = {
        .slurm_rank = "6", .slurm_size = "7", .slurm_local_rank = "0", .slurm_node = "3", .slurm_tasks = "2(x3),1"};
    expect(&slurm, "slurm", 6, 7, 0, 1);
    slurm.slurm_node = "2";
    slurm.slurm_rank = "5";
    slurm.slurm_local_rank = "1";
    expect(&slurm, "slurm", 5, 7, 1, 2);
    /* unreadable: the place on this host is not known, the rank is */
    static const char *const odd[] = {"2(x", "x", "2(x3),", "-1", "2(x0)"};
    for (size_t i = 0; i < KOLO_COUNTOF(odd); i++) {
        slurm.slurm_tasks = odd[i];
        slurm.slurm_node = "9";
        expect(&slurm, "slurm", 5, 7, 1, 0);
    }
    slurm.slurm_size = NULL; /* a batch script is no task */
    expect(&slurm, "none", 0, 1, 0, 1);
}

static void the_inner_launcher_counts(void **state)
{
    (void)state;
    kolo_job_values_t v = {.slurm_rank = "1", .slurm_size = "2", .pmi_rank = "1", .pmi_size = "2"};
    expect(&v, "slurm", 1, 2, -1, 0);
    v.mpi_local_size = "2";
    expect(&v, "mpich", 1, 2, -1, 2);
    v.ompi_rank = "3";
    v.ompi_size = "4";
    expect(&v, "openmpi", 3, 4, -1, 0);
    v.torch_size = "6"; /* a script that sets these alone has ranks take theirs from the launcher */
    v.torch_address = "a";
    expect(&v, "openmpi", 3, 4, -1, 0);
    v.torch_rank = "5";
    expect(&v, "torchrun", 5, 6, -1, 0);
    v.rank = "7";
    v.size = "8";
    expect(&v, "kolorun", 7, 8, -1, 0);
    static const char *const named[] = {"", "kolorun", "torchrun", "openmpi", "mpich", "slurm", "none"};
    for (v.launcher = KOLO_JOB_KOLORUN; v.launcher <= KOLO_JOB_NONE; v.launcher++)
        assert_string_equal(place_of(&v).launcher, named[v.launcher]);
}

static void refuse(const kolo_job_values_t *v, const char *word, const char *other)
{
    kolo_job_place_t place = {.rank = 99};
    assert_int_equal(kolo_job_place_from(v, &place), KOLO_ERR_INVALID_ARGUMENT);
    if (!strstr(kolo_error_text(), word) || !strstr(kolo_error_text(), other))
        fail_msg("\"%s\" names not %s and %s", kolo_error_text(), word, other);
    assert_int_equal(place.rank, 99);
}

static void what_is_half_there_is_refused(void **state)
{
    (void)state;
    const kolo_job_values_t half[] = {
        {.rank = "0"},
        {.size = "2"},
        {.rank = "0", .ompi_rank = "0", .ompi_size = "2"},
        {.ompi_rank = "0"},
        {.ompi_size = "2"},
        {.pmi_rank = "0", .mpi_local_size = "2"},
        {.pmi_size = "2"},
        {.torch_rank = "0", .torch_size = "2"},
        {.torch_rank = "0", .torch_address = "a"},
        {.torch_size = "2", .torch_address = "a"},
    };
    static const char *const missing[] = {
        "KOLO_NRANKS is not",          "KOLO_RANK is not", "KOLO_NRANKS is not", "OMPI_COMM_WORLD_SIZE is not",
        "OMPI_COMM_WORLD_RANK is not", "PMI_SIZE is not",  "PMI_RANK is not",    "MASTER_ADDR is not",
        "WORLD_SIZE is not",           "RANK is not"};
    for (size_t i = 0; i < KOLO_COUNTOF(half); i++) refuse(&half[i], missing[i], "KOLO_JOB_LAUNCHER");
    kolo_job_values_t v = half[3];
    v.launcher = KOLO_JOB_NONE;
    expect(&v, "none", 0, 1, 0, 1);
    v.launcher = KOLO_JOB_SLURM;
    refuse(&v, "KOLO_JOB_LAUNCHER is slurm", "none of its variables");
    const kolo_job_values_t meaningless = {.torch_rank = "colonel", .torch_port = "1"};
    expect(&meaningless, "none", 0, 1, 0, 1);
}

/* Each of them would be rank 0 of a job of its own. */
static void a_worker_whose_ranks_change_has_no_place(void **state)
{
    (void)state;
    kolo_job_values_t v = {.worker = "3"};
    kolo_job_place_t place = {.rank = 99};
    assert_int_equal(kolo_job_place_from(&v, &place), KOLO_ERR_INVALID_USAGE);
    assert_non_null(strstr(kolo_error_text(), "worker 3"));
    assert_non_null(strstr(kolo_error_text(), "kolo_state_run"));
    assert_int_equal(place.rank, 99);
    v.launcher = KOLO_JOB_NONE; /* as asked for */
    expect(&v, "none", 0, 1, 0, 1);
    v.launcher = KOLO_JOB_AUTO;
    v.torch_rank = "1"; /* whoever starts ranks inside of one */
    v.torch_size = "2";
    v.torch_address = "a";
    expect(&v, "torchrun", 1, 2, -1, 0);
}

static void two_places_at_once_are_refused(void **state)
{
    (void)state;
    kolo_job_values_t v = {
        .torch_rank = "0", .torch_size = "1", .torch_address = "a", .ompi_rank = "3", .ompi_size = "4"};
    refuse(&v, "WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
    v.torch_size = "4";
    refuse(&v, "rank 0 of 4", "rank 3 of 4");
    v.launcher = KOLO_JOB_OPENMPI;
    expect(&v, "openmpi", 3, 4, -1, 0);
    v.launcher = KOLO_JOB_AUTO;
    v.torch_rank = "3";
    expect(&v, "torchrun", 3, 4, -1, 0); /* both say the same */
    v.torch_rank = "9";
    v.torch_size = "16";
    expect(&v, "torchrun", 9, 16, -1, 0); /* started inside, several a rank */
    v.torch_size = "4";
    v.torch_rank = "1";
    v.torch_run = "r"; /* torchrun itself, started by mpirun for jobs of their own */
    expect(&v, "torchrun", 1, 4, -1, 0);
}

static void nonsense_is_named(void **state)
{
    (void)state;
    const kolo_job_values_t bad[] = {
        {.ompi_rank = "4", .ompi_size = "4"},
        {.ompi_rank = "-1", .ompi_size = "4"},
        {.ompi_rank = "1x", .ompi_size = "4"},
        {.ompi_rank = "1", .ompi_size = "0"},
        {.ompi_rank = "1", .ompi_size = "99999999999"},
        {.ompi_rank = "1", .ompi_size = "4", .ompi_local_rank = "2", .ompi_local_size = "2"},
        {.ompi_rank = "1", .ompi_size = "4", .ompi_local_rank = "4"},
        {.ompi_rank = "1", .ompi_size = "4", .ompi_local_rank = "2", .ompi_local_size = "5"},
    };
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) refuse(&bad[i], "OMPI_COMM_WORLD_", "");
    const kolo_job_values_t own = {.rank = "2", .size = "2"};
    refuse(&own, "rank 2 of 2", "KOLO_NRANKS");
}

static void jobs_have_names_of_their_own(void **state)
{
    (void)state;
    kolo_job_values_t v = {.slurm_rank = "0", .slurm_size = "2", .slurm_job = "17", .slurm_step = "0"};
    kolo_job_place_t place = place_of(&v);
    char first[KOLO_JOB_NAME_BYTES], other[KOLO_JOB_NAME_BYTES];
    assert_int_equal(kolo_job_name(&v, &place, first), KOLO_OK);
    assert_null(strchr(first, '/'));
    v.slurm_rank = "1"; /* all ranks of a step agree */
    assert_int_equal(kolo_job_name(&v, &place, other), KOLO_OK);
    assert_string_equal(first, other);
    v.slurm_step = "1";
    assert_int_equal(kolo_job_name(&v, &place, other), KOLO_OK);
    assert_string_not_equal(first, other);
    v.slurm_job = "1"; /* "17","0" and "1","70" are two */
    v.slurm_step = "70";
    assert_int_equal(kolo_job_name(&v, &place, other), KOLO_OK);
    assert_string_not_equal(first, other);
    memcpy(first, other, sizeof first);
    v.name = "mine";
    assert_int_equal(kolo_job_name(&v, &place, other), KOLO_OK);
    assert_string_not_equal(first, other);
}

static void mpiexec_tells_no_name(void **state)
{
    (void)state;
    kolo_job_values_t v = {.pmi_rank = "0", .pmi_size = "2", .mpi_local_rank = "0", .mpi_local_size = "2"};
    kolo_job_place_t place = place_of(&v);
    char first[KOLO_JOB_NAME_BYTES], other[KOLO_JOB_NAME_BYTES];
    assert_int_equal(kolo_job_name(&v, &place, first), KOLO_OK);
    assert_int_equal(kolo_job_name(&v, &place, other), KOLO_OK);
    assert_string_equal(first, other);
    v.mpi_local_size = "1"; /* the other one is elsewhere */
    place = place_of(&v);
    assert_int_equal(kolo_job_name(&v, &place, other), KOLO_ERR_UNSUPPORTED);
    assert_non_null(strstr(kolo_error_text(), "KOLO_JOB_NAME"));
    v.name = "mine";
    assert_int_equal(kolo_job_name(&v, &place, other), KOLO_OK);
}

static void addresses_follow_from_what_is_told(void **state)
{
    (void)state;
    char text[300];
    kolo_job_values_t torch = {
        .torch_rank = "0", .torch_size = "2", .torch_address = "node1", .torch_port = "29500"};
    kolo_job_place_t place = place_of(&torch);
    assert_true(kolo_job_address(&torch, &place, 0, text, sizeof text));
    assert_string_equal(text, "node1:29501");
    assert_true(kolo_job_address(&torch, &place, 1, text, sizeof text));
    assert_string_equal(text, "node1:29502");
    assert_true(kolo_job_address(&torch, &place, UINT32_MAX, text, sizeof text));
    assert_string_equal(text, "node1:29504");
    torch.torch_address = "fe80::1";
    assert_true(kolo_job_address(&torch, &place, 0, text, sizeof text));
    assert_string_equal(text, "[fe80::1]:29501");
    torch.torch_port = "65532";
    assert_false(kolo_job_address(&torch, &place, 0, text, sizeof text));
    kolo_job_values_t slurm = {.slurm_rank = "0", .slurm_size = "2", .slurm_job = "1", .slurm_step = "0"};
    place = place_of(&slurm);
    assert_false(kolo_job_address(&slurm, &place, 0, text, sizeof text));
    static const char *const lists[][2] = {
        {"n[03-07,9],m2", "n03:"}, {"m2,n1", "m2:"}, {"localhost", "localhost:"}, {"n[12]", "n12:"}};
    for (size_t i = 0; i < KOLO_COUNTOF(lists); i++) {
        slurm.slurm_hosts = lists[i][0];
        assert_true(kolo_job_address(&slurm, &place, 0, text, sizeof text));
        assert_memory_equal(text, lists[i][1], strlen(lists[i][1]));
    }
    slurm.slurm_hosts = "n[x]";
    assert_false(kolo_job_address(&slurm, &place, 0, text, sizeof text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_launcher_is_known),
        cmocka_unit_test(slurm_tells_tasks_per_host),
        cmocka_unit_test(the_inner_launcher_counts),
        cmocka_unit_test(what_is_half_there_is_refused),
        cmocka_unit_test(a_worker_whose_ranks_change_has_no_place),
        cmocka_unit_test(two_places_at_once_are_refused),
        cmocka_unit_test(nonsense_is_named),
        cmocka_unit_test(jobs_have_names_of_their_own),
        cmocka_unit_test(mpiexec_tells_no_name),
        cmocka_unit_test(addresses_follow_from_what_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
