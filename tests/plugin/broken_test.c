/* SPDX-License-Identifier: Apache-2.0
 *
 * Plug-ins that are not what they say: an error that names them, never a hang or a crash. Arguments: a folder with
 * small_v8.so to small_v11.so and small_lies.so (small.c).
 */
#include "base/test.h"
#include "remote/plugin/plugin.h"
#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;

static kolo_status_t load(const char *file, const char *what)
{
    static char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    setenv("SMALL_DOES", what, 1);
    return kolo_plugin_load(&kolo_plugin, path, 300);
}

static void expect(const char *file, const char *what, kolo_status_t status, const char *words)
{
    assert_int_equal(load(file, what), status);
    assert_non_null(strstr(kolo_error_text(), file));
    if (!strstr(kolo_error_text(), words)) fail_msg("%s: %s", what, kolo_error_text());
}

static void all_versions_load(void **state)
{
    (void)state;
    for (int v = KOLO_NCCL_OLDEST; v <= KOLO_NCCL_NEWEST; v++) {
        char file[32];
        snprintf(file, sizeof file, "small_v%d.so", v);
        assert_int_equal(load(file, ""), KOLO_OK);
        assert_int_equal(kolo_plugin.abi->version, v);
        assert_string_equal(kolo_plugin.name, "Small");
        assert_int_equal(kolo_plugin.ndevices, 1);
        assert_string_equal(kolo_plugin.device[0].name, "small0");
        assert_true(kolo_plugin.device[0].gbps == 1.25);
    }
}

/* As package managers make them. */
static void one_that_lies_deep_in_folders_is_found(void **state)
{
    const char *near = folder;
    static char deep[4096];
    int n = snprintf(deep, sizeof deep, "%s", folder);
    (void)state;
    for (int i = 0; i < 150; i++)
        n += snprintf(deep + n, sizeof deep - (size_t)n, "/../%s", strrchr(near, '/') + 1);
    folder = deep;
    assert_int_equal(load("small_v11.so", ""), KOLO_OK);
    assert_non_null(strstr(kolo_plugin.file, "small_v11.so"));
    expect("not_there_either.so", "", KOLO_ERR_INVALID_USAGE, "cannot be loaded");
    while (n < (int)sizeof deep - 1) deep[n++] = '/';
    assert_int_equal(load("small_v11.so", ""), KOLO_ERR_INVALID_USAGE);
    folder = near;
}

static void one_that_cannot_be_loaded_is_named(void **state)
{
    (void)state;
    expect("not_there.so", "", KOLO_ERR_INVALID_USAGE, "cannot be loaded");
    assert_int_equal(kolo_plugin_load(&kolo_plugin, "libm.so.6", 300), KOLO_ERR_UNSUPPORTED);
    assert_non_null(strstr(kolo_error_text(), "none at all"));
    assert_int_equal(kolo_plugin_load(&kolo_plugin, "nowhere", 300), KOLO_ERR_INVALID_USAGE);
    assert_non_null(strstr(kolo_error_text(), "libnccl-net-nowhere.so"));
}

static void one_that_lies_about_its_version_is_refused(void **state)
{
    (void)state;
    expect("small_lies.so", "", KOLO_ERR_PROTOCOL, "another version");
}

static void one_that_hangs_or_fails_is_left(void **state)
{
    (void)state;
    for (int v = KOLO_NCCL_OLDEST; v <= KOLO_NCCL_NEWEST; v++) {
        char file[32];
        snprintf(file, sizeof file, "small_v%d.so", v);
        expect(file, "init-hangs", KOLO_ERR_TIMEOUT, "init() has not returned");
        expect(file, "init-fails", KOLO_ERR_REMOTE, "init() returned 2 (an error of the system)");
    }
}

static void one_that_talks_nonsense_is_refused(void **state)
{
    (void)state;
    expect("small_v8.so", "nonsense-devices", KOLO_ERR_PROTOCOL, "-7 devices");
    expect("small_v9.so", "no-name", KOLO_ERR_PROTOCOL, "device 0 has no name");
}

/* ---- connections ---- */

static const kolo_net_ops_t *ops = &kolo_net_plugin;
static kolo_net_open_t *device;
static kolo_net_end_t *reader, *writer;
static kolo_net_region_t *here, *there;
static char sent[64] = "what is sent", came[64];

static void make_pair(const char *what)
{
    static const uint8_t key[32];
    const kolo_net_end_config_t config = {.depth = 4, .message_bytes = 64, .key = key, .label = "a test"};
    kolo_net_hello_t hellos[2];
    assert_int_equal(load("small_v11.so", ""), KOLO_OK);
    setenv("SMALL_DOES", what, 1);
    kolo_plugin_options.timeout_ms = 200;
    assert_int_equal(ops->open(0, &device), KOLO_OK);
    assert_int_equal(ops->listen(device, &config, &hellos[0], &reader), KOLO_OK);
    assert_int_equal(ops->start(device, &config, &hellos[1], &writer), KOLO_OK);
    assert_int_equal(ops->enroll(device, sent, sizeof sent, false, &here), KOLO_OK);
    assert_int_equal(ops->enroll(device, came, sizeof came, true, &there), KOLO_OK);
    assert_int_equal(ops->connect(writer, &hellos[0]), KOLO_OK);
    assert_int_equal(ops->accept(reader, &hellos[1]), KOLO_OK);
}

static void close_pair(void)
{
    ops->shut(writer);
    ops->shut(reader);
    ops->withdraw(here);
    ops->withdraw(there);
    ops->close(device);
}

/* One message from end to end; the first error of either end. */
static kolo_status_t carry(uint32_t *bytes)
{
    kolo_net_done_t done;
    bool asked = false, said = false;
    int n = 0, m;
    while (n == 0) {
        kolo_status_t status = said ? KOLO_OK : ops->isend(writer, sent, sizeof sent, here, 5);
        if (!said && status == KOLO_OK) said = true;
        if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
        status = asked ? KOLO_OK : ops->irecv(reader, came, sizeof came, there, 7, 0);
        if (!asked && status == KOLO_OK) asked = true;
        if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return status;
        KOLO_TRY(ops->test(writer, &done, 1, &m));
        KOLO_TRY(ops->test(reader, &done, 1, &n));
    }
    assert_int_equal(done.cookie, 7);
    *bytes = done.bytes;
    return KOLO_OK;
}

static void expect_of_pair(const char *what, kolo_status_t status, const char *words)
{
    uint32_t bytes;
    make_pair(what);
    assert_int_equal(carry(&bytes), status);
    assert_non_null(strstr(kolo_error_text(), "Small"));
    assert_non_null(strstr(kolo_error_text(), "small_v11.so"));
    if (!strstr(kolo_error_text(), words)) fail_msg("%s: %s", what, kolo_error_text());
    close_pair();
}

static void a_message_comes_whole(void **state)
{
    uint32_t bytes = 0;
    (void)state;
    make_pair("");
    memset(came, 0, sizeof came);
    assert_int_equal(carry(&bytes), KOLO_OK);
    assert_int_equal(bytes, sizeof sent);
    assert_memory_equal(sent, came, sizeof sent);
    close_pair();
}

static void a_connection_that_hangs_ends_with_its_name(void **state)
{
    (void)state;
    expect_of_pair("connect-hangs", KOLO_ERR_TIMEOUT, "has not made a connection within 200 ms");
}

static void results_that_make_no_sense_are_errors(void **state)
{
    (void)state;
    expect_of_pair("bytes-nonsense", KOLO_ERR_PROTOCOL, "-1 bytes came");
    expect_of_pair("isend-fails", KOLO_ERR_REMOTE, "returned 3 (an internal error)");
}

static void a_hello_of_another_plug_in_is_refused(void **state)
{
    static const uint8_t key[32];
    const kolo_net_end_config_t config = {.depth = 4, .message_bytes = 64, .key = key, .label = "a test"};
    kolo_net_hello_t hello;
    (void)state;
    assert_int_equal(load("small_v11.so", ""), KOLO_OK);
    assert_int_equal(ops->open(0, &device), KOLO_OK);
    assert_int_equal(ops->start(device, &config, &hello, &writer), KOLO_OK);
    for (int i = 0; i < 8; i++) {
        kolo_net_hello_t other = hello;
        other.bytes[i] ^= 0x40;
        assert_int_equal(ops->connect(writer, &other), KOLO_ERR_MISMATCH);
    }
    ops->shut(writer);
    ops->close(device);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_versions_load),
        cmocka_unit_test(one_that_lies_deep_in_folders_is_found),
        cmocka_unit_test(one_that_cannot_be_loaded_is_named),
        cmocka_unit_test(one_that_lies_about_its_version_is_refused),
        cmocka_unit_test(one_that_hangs_or_fails_is_left),
        cmocka_unit_test(one_that_talks_nonsense_is_refused),
        cmocka_unit_test(a_message_comes_whole),
        cmocka_unit_test(a_connection_that_hangs_ends_with_its_name),
        cmocka_unit_test(results_that_make_no_sense_are_errors),
        cmocka_unit_test(a_hello_of_another_plug_in_is_refused),
    };
    if (argc < 2) return 1;
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
