/* SPDX-License-Identifier: Apache-2.0
 *
 * A listener whose owner has what it waited for, and closes it from within the call that says so.
 */
#include "base/clock.h"
#include "base/params.h"
#include "base/test.h"
#include "link/listener.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

static const uint8_t frame[16] = "the only one";
static kolo_listener_t *listener; /* the progress thread's */
static _Atomic bool delivered, over;
static kolo_status_t outcome;

static kolo_auth_verdict_t admit(void *owner, const kolo_claim_t *claim, size_t *frame_bytes)
{
    (void)owner, (void)claim;
    *frame_bytes = sizeof frame;
    return KOLO_VERDICT_OK;
}

static void accepted(void *owner, const kolo_claim_t *claim, kolo_socket_t socket, const uint8_t *bytes)
{
    (void)owner, (void)claim, (void)socket;
    kolo_listener_close(listener);
    listener = NULL;
    void *reused = malloc(sizeof *listener); /* who still looks there finds this */
    if (reused) memset(reused, 0xa5, sizeof *listener);
    atomic_store(&delivered, memcmp(bytes, frame, sizeof frame) == 0);
    free(reused);
}

static void dialled(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    (void)arg, (void)socket, (void)text;
    outcome = status;
    atomic_store(&over, true);
}

static void an_owner_may_close_it_when_a_frame_has_come(void **state)
{
    (void)state;
    static const kolo_listener_ops_t ops = {.admit = admit, .accepted = accepted};
    static const kolo_key_t key = {{7}};
    const kolo_param_table_t *tables[] = {&kolo_link_params};
    kolo_progress_t *progress;
    kolo_address_t address;
    kolo_dial_t *dial;
#ifdef KOLO_HAVE_SODIUM
    assert_true(sodium_init() >= 0);
#endif
    assert_int_equal(kolo_params_load(tables, 1, NULL, NULL), KOLO_OK);
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    assert_int_equal(kolo_address_parse("127.0.0.1:1", &address), KOLO_OK);
    kolo_address_set_port(&address, 0);
    kolo_address_set_cookie(&address, 5);
    const kolo_listener_config_t config = {&address, &key, &ops, NULL, false};
    assert_int_equal(kolo_listener_open(progress, &config, &listener), KOLO_OK);
    const kolo_dial_config_t call = {.address = kolo_listener_address(listener),
                                     .key = key,
                                     .claim = {.purpose = KOLO_PURPOSE_CHECKIN, .from = 1},
                                     .deadline_ns = kolo_deadline_ms(20000),
                                     .done = dialled,
                                     .frame = frame,
                                     .frame_bytes = sizeof frame,
                                     .who = "the listener"};
    assert_int_equal(kolo_dial_start(progress, &call, &dial), KOLO_OK);
    while (!atomic_load(&over) && kolo_now_ns() < call.deadline_ns) poll(NULL, 0, 1);
    assert_true(atomic_load(&over) && atomic_load(&delivered));
    assert_int_equal(outcome, KOLO_OK); /* it was acknowledged */
    kolo_progress_put(progress);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_owner_may_close_it_when_a_frame_has_come)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
