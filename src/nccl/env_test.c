/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of NCCL's variables means what Kolo has: each parameter that it names exists, and takes each of the
 * words that it would be given.
 */
#include "base/test.h"
#include "comm/gpu/device.h"
#include "comm/params.h"
#include "nccl/env.h"
#include "nccl/layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const kolo_param_t *find(const char *key)
{
    size_t n;
    const kolo_param_table_t *const *tables = kolo_param_tables(&n);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < tables[t]->count; i++)
            if (strcmp(tables[t]->rows[i].key, key) == 0) return &tables[t]->rows[i];
    return NULL;
}

static void each_parameter_is_one_of_ours_and_takes_its_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < kolo_nccl_env_count; i++) {
        const kolo_nccl_env_t *row = &kolo_nccl_env_table[i];
        if (row->how != KOLO_NCCL_ENV_KOLO) continue;
        const kolo_param_t *param = find(row->kolo);
        if (!param) fail_msg("%s: there is no parameter %s", row->key, row->kolo);
        for (const char *p = row->words; p && *p;) {
            char name[64];
            size_t all = strcspn(p, "|");
            snprintf(name, sizeof name, "%.*s", (int)strcspn(p, "=|"), p);
            const char *word = kolo_nccl_env_word(row, name);
            if (word && word != name && param->kind == KOLO_PARAM_ENUM && kolo_param_parse(param, word) != KOLO_OK)
                fail_msg("%s=%s: %s", row->key, name, kolo_error_text());
            p += all + (p[all] == '|');
        }
    }
}

static void words(void **state)
{
    (void)state;
    const kolo_nccl_env_t *debug = kolo_nccl_env_find("NCCL_DEBUG", 10),
                          *level = kolo_nccl_env_find("NCCL_P2P_LEVEL", 14);
    const kolo_nccl_env_t *off = kolo_nccl_env_find("NCCL_P2P_DISABLE", 16),
                          *name = kolo_nccl_env_find("NCCL_SOCKET_IFNAME", 18);
    assert_string_equal(kolo_nccl_env_word(debug, "INFO"), "info");
    assert_string_equal(kolo_nccl_env_word(debug, "warn"), "warn");
    assert_string_equal(kolo_nccl_env_word(debug, "whatever"), "warn");
    assert_string_equal(kolo_nccl_env_word(level, "PXB"), "pci");
    assert_null(kolo_nccl_env_word(level, "FAR"));
    assert_string_equal(kolo_nccl_env_word(off, "1"), "off");
    assert_null(kolo_nccl_env_word(off, "0"));
    assert_string_equal(kolo_nccl_env_word(name, "=eth0,eth1"), "=eth0,eth1");
    assert_null(kolo_nccl_env_find("NCCL_SOCKET_IFNAM", 17));
}

static void each_variable_stands_there_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < kolo_nccl_env_count; i++)
        assert_ptr_equal(kolo_nccl_env_find(kolo_nccl_env_table[i].key, strlen(kolo_nccl_env_table[i].key)),
                         &kolo_nccl_env_table[i]);
}

/* Who uses NCCL trains, and computes beside its operations. What has failed is held for as long as docs/nccl.md
 * says. */
static void defaults_are_those_of_the_page(void **state)
{
    (void)state;
    unsetenv("KOLO_GPU_PROFILE");
    unsetenv("NCCL_CTA_POLICY");
    unsetenv("KOLO_HOLD_MS");
    assert_int_equal(kolo_nccl_env_load(), KOLO_OK);
    assert_int_equal(kolo_comm_library_init(), KOLO_OK);
    assert_int_equal(kolo_gpus_profile, KOLO_GPU_BALANCED);
    assert_int_equal(kolo_comm_options.hold_ms, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_parameter_is_one_of_ours_and_takes_its_words),
        cmocka_unit_test(words),
        cmocka_unit_test(each_variable_stands_there_once),
        cmocka_unit_test(defaults_are_those_of_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
