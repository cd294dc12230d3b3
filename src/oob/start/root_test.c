/* SPDX-License-Identifier: Apache-2.0
 *
 * What the root and the ids must refuse, and in which words: ranks that do not fit together, ranks that are
 * missing, ids that are none, were used, or have another secret; and ids from KOLO_COMM_ID.
 */
#include "base/failpoint.h"
#include "oob/oob_test_util.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* In which a few ranks must have checked in, and the bound of what must not wait for a far larger limit. */
#ifdef KOLO_SANITIZED
#define SHORT_MS 3000
#else
#define SHORT_MS 1000
#endif
#define SOON_MS 10000

enum { MAX = 8 };
static test_rank_t ranks[MAX];
static char id_file[64], secret_file[64]; /* of this process: two of it may run at a time */

static _Atomic int checked_in;

static void count_check_ins(const char *name, kolo_fault_t fault)
{
    (void)fault;
    if (strcmp(name, "oob.checkin.sent") == 0) atomic_fetch_add(&checked_in, 1);
}

/* Starts `count` ranks with the given numbers, waits for all, keeps results in ranks[]. */
static void open_ranks(const kolo_unique_id_t *id, int count, const int *rank, const int *nranks, int timeout_ms)
{
    for (int i = 0; i < count; i++) {
        ranks[i] =
            (test_rank_t){.rank = rank[i], .nranks = nranks[i], .nids = 1, .ids = id, .timeout_ms = timeout_ms};
        test_start(&ranks[i]);
    }
    for (int i = 0; i < count; i++) pthread_join(ranks[i].thread, NULL);
}

static void assert_says(const char *text, const char *part)
{
    if (strstr(text, part) != NULL) return;
    fail_msg("expected '%s' in: %s", part, text);
}

/* Who joins them later may come from another host. */
static void can_be_called_from_elsewhere(test_rank_t *me)
{
    static const uint8_t key[32] = {1};
    kolo_oob_child_t *child;
    kolo_address_t usual, own;
    assert_true(kolo_address_is_loopback(&me->oob->table[me->rank]));
    test_ok(kolo_oob_prepare_joined(me->oob, key, &child, own.bytes));
    test_ok(kolo_address_choose_local(NULL, &usual)); /* loopback, too, where there is nothing else */
    kolo_address_set_port(&own, 0);
    kolo_address_set_cookie(&own, 0);
    kolo_address_set_port(&usual, 0);
    assert_memory_equal(own.bytes, usual.bytes, sizeof own.bytes);
    kolo_oob_discard_child(child);
}

static void ranks_of_one_host_meet_on_loopback(void **state)
{
    kolo_unique_id_t id;
    kolo_id_t known;
    (void)state;
    test_ok(kolo_id_create_local(&id));
    assert_null(kolo_id_decode(&id, &known));
    assert_true(kolo_address_is_loopback(&known.address));
    test_run_ids(2, 1, &id, can_be_called_from_elsewhere);
}

static void a_different_rank_count_is_told_to_every_rank(void **state)
{
    kolo_unique_id_t id;
    (void)state;
    test_ok(kolo_id_create(&id));
    open_ranks(&id, 3, (int[]){0, 1, 2}, (int[]){4, 4, 5}, 20000);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ranks[i].status, KOLO_ERR_MISMATCH);
        assert_says(ranks[i].text, "4");
        assert_says(ranks[i].text, "5");
        assert_says(ranks[i].text, "rank 2");
        assert_true(IN_TIME(ranks[i].took_ms < 5000));
    }
}

static void a_rank_that_comes_twice_is_told_to_every_rank(void **state)
{
    kolo_unique_id_t id;
    (void)state;
    test_ok(kolo_id_create(&id));
    open_ranks(&id, 3, (int[]){0, 1, 1}, (int[]){4, 4, 4}, 20000);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ranks[i].status, KOLO_ERR_MISMATCH);
        assert_says(ranks[i].text, "rank 1 checked in twice");
        assert_true(IN_TIME(ranks[i].took_ms < 5000));
    }
}

static void missing_ranks_are_named_after_the_time_out(void **state)
{
    kolo_unique_id_t id;
    (void)state;
    test_ok(kolo_id_create(&id));
    open_ranks(&id, 3, (int[]){0, 2, 5}, (int[]){8, 8, 8}, SHORT_MS);
    uint64_t longest_ms = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ranks[i].status, KOLO_ERR_TIMEOUT);
        assert_says(ranks[i].text,
                    "ranks 1 (never called), 3-4 (never called), 6-7 (never called) are missing: 3 of 8");
        assert_true(IN_TIME(ranks[i].took_ms < SHORT_MS + SOON_MS));
        longest_ms = KOLO_MAX(longest_ms, ranks[i].took_ms);
    }
    assert_true(longest_ms >= SHORT_MS * 4 / 5 - 1); /* when the root speaks */
}

static void a_rank_that_dies_after_its_check_in_is_named(void **state)
{
    kolo_unique_id_t id;
    _Atomic uint32_t abort_flag = 0;
    (void)state;
    test_ok(kolo_id_create(&id));
    test_rank_t gone = {.rank = 1, .nranks = 3, .nids = 1, .ids = &id, .timeout_ms = 20000, .abort = &abort_flag};
    atomic_store(&checked_in, 0);
    test_start(&gone);
    for (int i = 0; i < 20000 && atomic_load(&checked_in) == 0; i++) poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&checked_in), 1);
    atomic_store(&abort_flag, 1);
    pthread_join(gone.thread, NULL);
    assert_int_equal(gone.status, KOLO_ERR_ABORTED);
    open_ranks(&id, 2, (int[]){0, 2}, (int[]){3, 3}, 20000);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, KOLO_ERR_REMOTE);
        assert_says(ranks[i].text, "rank 1, at ");
        assert_says(ranks[i].text, "gave up after it had checked in");
        assert_true(IN_TIME(ranks[i].took_ms < 5000));
    }
}

static void an_id_is_good_for_one_job(void **state)
{
    kolo_unique_id_t id;
    (void)state;
    test_ok(kolo_id_create(&id));
    test_run_ids(2, 1, &id, NULL);
    open_ranks(&id, 2, (int[]){0, 1}, (int[]){2, 2}, 20000);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, KOLO_ERR_REMOTE);
        assert_says(ranks[i].text, "id was used before");
        assert_true(IN_TIME(ranks[i].took_ms < SOON_MS));
    }
}

static void another_secret_is_refused(void **state)
{
    kolo_unique_id_t id, other;
    kolo_id_t parsed;
    kolo_link_counters_t before, after;
    (void)state;
    test_ok(kolo_id_create(&id));
    assert_null(kolo_id_decode(&id, &parsed));
    parsed.secret.bytes[31] ^= 1;
    kolo_id_encode(&parsed, &other);
    kolo_link_get_counters(&before);
    open_ranks(&other, 1, (int[]){0}, (int[]){1}, 20000);
    kolo_link_get_counters(&after);
    assert_int_equal(ranks[0].status, KOLO_ERR_AUTH);
    assert_says(ranks[0].text, "secret");
    assert_int_equal(after.refused_auth, before.refused_auth + 1);
    test_run_ids(2, 1, &id, NULL); /* and the job comes about all the same */
}

static void bytes_that_are_no_id_are_refused(void **state)
{
    kolo_unique_id_t id, bad;
    kolo_oob_t *oob = NULL;
    (void)state;
    memset(&bad, 0, sizeof(bad));
    assert_int_equal(kolo_id_check(&bad), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_id_check(NULL), KOLO_ERR_INVALID_ARGUMENT);
    test_ok(kolo_id_create(&id));
    for (int i = 0; i < KOLO_UNIQUE_ID_BYTES; i++) {
        bad = id;
        bad.bytes[i] ^= 0x40;
        assert_int_equal(kolo_id_check(&bad), KOLO_ERR_INVALID_ARGUMENT);
    }
    kolo_oob_config_t config = {0, 1, 1, &bad, 1000, NULL, "test"};
    assert_int_equal(kolo_oob_open(&config, &oob), KOLO_ERR_INVALID_ARGUMENT);
    config.ids = &id;
    config.rank = 1;
    assert_int_equal(kolo_oob_open(&config, &oob), KOLO_ERR_INVALID_ARGUMENT);
    config.rank = -1;
    assert_int_equal(kolo_oob_open(&config, &oob), KOLO_ERR_INVALID_ARGUMENT);
    config.rank = 0;
    config.nranks = 0;
    assert_int_equal(kolo_oob_open(&config, &oob), KOLO_ERR_INVALID_ARGUMENT);
    config.nranks = 1;
    config.nids = 2;
    assert_int_equal(kolo_oob_open(&config, &oob), KOLO_ERR_INVALID_ARGUMENT);
    assert_null(oob);
}

static void *save_later(void *arg)
{
    poll(NULL, 0, 60);
    test_ok(kolo_id_save(arg, id_file));
    return NULL;
}

static void an_id_travels_as_a_file(void **state)
{
    kolo_unique_id_t id, read_back;
    struct stat info;
    pthread_t thread;
    (void)state;
    unlink(id_file);
    assert_int_equal(kolo_id_load(&read_back, id_file, 20), KOLO_ERR_TIMEOUT);
    test_ok(kolo_id_create(&id));
    assert_int_equal(pthread_create(&thread, NULL, save_later, &id), 0);
    test_ok(kolo_id_load(&read_back, id_file, 5000));
    pthread_join(thread, NULL);
    assert_memory_equal(&id, &read_back, sizeof(id));
    assert_int_equal(stat(id_file, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(truncate(id_file, 100), 0);
    assert_int_equal(kolo_id_load(&read_back, id_file, 20), KOLO_ERR_INVALID_ARGUMENT);
    unlink(id_file);
}

/* Whoever has written an id brings its readers into his job. */
static void an_id_file_of_another_user_is_not_believed(void **state)
{
    kolo_unique_id_t id, read_back;
    char link_file[sizeof id_file + 8];
    (void)state;
    snprintf(link_file, sizeof link_file, "%s.link", id_file);
    test_ok(kolo_id_create(&id));
    test_ok(kolo_id_save(&id, id_file));
    assert_int_equal(symlink(id_file, link_file), 0);
    kolo_status_t status = kolo_id_load(&read_back, link_file, 20);
    unlink(link_file);
    assert_int_equal(status, KOLO_ERR_SYSTEM);
    assert_says(kolo_error_text(), "symbolic link");
    assert_int_equal(chmod(id_file, 0622), 0);
    assert_int_equal(kolo_id_load(&read_back, id_file, 20), KOLO_ERR_INVALID_USAGE);
    assert_says(kolo_error_text(), "others may read or change");
    if (geteuid() == 0) { /* only root can give a file away */
        assert_int_equal(chmod(id_file, 0600), 0);
        assert_int_equal(chown(id_file, 12345, 12345), 0);
        assert_int_equal(kolo_id_load(&read_back, id_file, 20), KOLO_ERR_INVALID_USAGE);
        assert_says(kolo_error_text(), "belongs to user 12345");
    }
    unlink(id_file);
    assert_int_equal(mkfifo(id_file, 0600), 0); /* nor does one hold us up */
    assert_int_equal(kolo_id_load(&read_back, id_file, 20), KOLO_ERR_INVALID_USAGE);
    unlink(id_file);
}

/* ---- KOLO_COMM_ID ---- */

static void write_secret(const char *text)
{
    int fd = open(secret_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* A port that is free now. */
static uint16_t free_port(void)
{
    kolo_address_t address;
    kolo_unique_id_t id;
    kolo_id_t parsed;
    test_ok(kolo_id_create(&id));
    assert_null(kolo_id_decode(&id, &parsed));
    address = parsed.address;
    kolo_root_stop_all();
    return kolo_address_port(&address);
}

#ifdef KOLO_HAVE_SODIUM
/* What whoever squats the address would try for each word of a list, if it came cheap. */
static bool one_hash_gives(const char *secret, const char *scope, const kolo_key_t *key)
{
    static const kolo_key_t zero;
    kolo_key_t base, guess;
    kolo_auth_derive(&zero, "secret", secret, strlen(secret), &base);
    kolo_auth_derive(&base, "comm id", scope, strlen(scope), &guess);
    return memcmp(&guess, key, sizeof(guess)) == 0;
}

static void a_password_costs_more_than_a_hash_to_guess(void **state)
{
    static const char *const secrets[] = {
        "correct horse battery", /* and 32 bytes of /dev/urandom in hexadecimal: */
        "8d1f0f2cb2a96e0d5e3b7c4a9f86d1e2038495a6b7c8d9eaf1b2c3d4e5f60718"};
    kolo_key_t key, again;
    (void)state;
    kolo_meet_process_init();
    kolo_meet_values.secret_file = secret_file;
    for (int i = 0; i < 2; i++) {
        write_secret(secrets[i]);
        test_ok(kolo_secret_read("here:1", &key));
        test_ok(kolo_secret_read("here:1", &again));
        assert_memory_equal(&key, &again, sizeof(key));
        assert_int_equal(one_hash_gives(secrets[i], "here:1", &key), i == 1);
    }
    unlink(secret_file);
    kolo_meet_values.secret_file = NULL;
}
#endif

static void a_secret_that_others_can_read_or_write_is_refused(void **state)
{
    kolo_key_t key;
    (void)state;
    kolo_meet_process_init();
    kolo_meet_values.secret_file = secret_file;
    write_secret("a secret that is long enough\n");
    assert_int_equal(chmod(secret_file, 0644), 0);
    assert_int_equal(kolo_secret_read("here:1", &key), KOLO_ERR_INVALID_USAGE);
    assert_says(kolo_error_text(), "chmod 600");
    assert_int_equal(chmod(secret_file, 0600), 0);
    test_ok(kolo_secret_read("here:1", &key));
    if (geteuid() == 0) {
        assert_int_equal(chown(secret_file, 12345, 12345), 0);
        assert_int_equal(kolo_secret_read("here:1", &key), KOLO_ERR_INVALID_USAGE);
        assert_says(kolo_error_text(), "belongs to user 12345");
    }
    unlink(secret_file);
    kolo_meet_values.secret_file = NULL;
}

static void every_rank_can_make_a_fixed_id(void **state)
{
    char text[64];
    kolo_unique_id_t id, again;
    (void)state;
    snprintf(text, sizeof(text), "127.0.0.1:%u", free_port());
    kolo_meet_values.comm_id = text;
    assert_int_equal(kolo_id_create(&id), KOLO_ERR_INVALID_USAGE); /* no secret */
    assert_says(kolo_error_text(), "KOLO_COMM_SECRET_FILE");
    kolo_meet_values.secret_file = secret_file;
    write_secret("short");
    assert_int_equal(kolo_id_create(&id), KOLO_ERR_INVALID_USAGE);
    write_secret("a secret that is long enough\n");
    for (int job = 0; job < 3; job++) { /* one after the other, whoever is there first is the root */
        test_ok(kolo_id_create(&id));
        test_ok(kolo_id_create(&again));
        assert_memory_equal(&id, &again, sizeof(id));
        if (job == 2) kolo_root_stop_all(); /* nobody serves it: a rank becomes the root */
        test_run_ids(5, 1, &id, NULL);
    }
    write_secret("another secret, just as long\n");
    test_ok(kolo_id_create(&again));
    assert_memory_not_equal(&id, &again, sizeof(id));
    kolo_root_stop_all();
    unlink(secret_file);
    kolo_meet_values.secret_file = NULL;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "a secret from a descriptor", 26), 26);
    close(fds[1]);
    kolo_meet_values.secret_fd = fds[0];
    test_ok(kolo_id_create(&id));
    test_ok(kolo_id_create(&again)); /* the pipe is empty by now */
    assert_memory_equal(&id, &again, sizeof(id));
    close(fds[0]);
    kolo_meet_values.secret_fd = -1;
    kolo_meet_values.comm_id = NULL;
    kolo_root_stop_all();
}

static void a_fixed_id_waits_for_a_root_that_comes_late(void **state)
{
    kolo_id_t fixed = {.fixed = true};
    kolo_unique_id_t id;
    (void)state;
    test_ok(kolo_address_parse("192.0.2.77:9", &fixed.address)); /* nobody's */
    kolo_id_encode(&fixed, &id);
    open_ranks(&id, 1, (int[]){0}, (int[]){1}, 300);
    assert_true(ranks[0].status == KOLO_ERR_TIMEOUT || ranks[0].status == KOLO_ERR_SYSTEM);
    assert_true(ranks[0].took_ms >= 300 || ranks[0].status != KOLO_ERR_TIMEOUT);
    assert_true(IN_TIME(ranks[0].took_ms < SOON_MS));
    assert_says(ranks[0].text, "192.0.2.77:9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_of_one_host_meet_on_loopback, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_different_rank_count_is_told_to_every_rank, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_rank_that_comes_twice_is_told_to_every_rank, test_before, test_after),
        cmocka_unit_test_setup_teardown(missing_ranks_are_named_after_the_time_out, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_rank_that_dies_after_its_check_in_is_named, test_before, test_after),
        cmocka_unit_test_setup_teardown(an_id_is_good_for_one_job, test_before, test_after),
        cmocka_unit_test_setup_teardown(another_secret_is_refused, test_before, test_after),
        cmocka_unit_test_setup_teardown(bytes_that_are_no_id_are_refused, test_before, test_after),
        cmocka_unit_test_setup_teardown(an_id_travels_as_a_file, test_before, test_after),
        cmocka_unit_test_setup_teardown(an_id_file_of_another_user_is_not_believed, test_before, test_after),
#ifdef KOLO_HAVE_SODIUM
        cmocka_unit_test_setup_teardown(a_password_costs_more_than_a_hash_to_guess, test_before, test_after),
#endif
        cmocka_unit_test_setup_teardown(a_secret_that_others_can_read_or_write_is_refused, test_before, test_after),
        cmocka_unit_test_setup_teardown(every_rank_can_make_a_fixed_id, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_fixed_id_waits_for_a_root_that_comes_late, test_before, test_after),
    };
    snprintf(id_file, sizeof(id_file), "/tmp/kolo-oob-test-id.%d", (int)getpid());
    snprintf(secret_file, sizeof(secret_file), "/tmp/kolo-oob-test-secret.%d", (int)getpid());
    kolo_fail_point_hook = count_check_ins;
    kolo_fail_points_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
