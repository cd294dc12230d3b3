/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives a network plug-in as NCCL does: argument 1 is the shared object (libnccl-net-kolo.so). In each version
 * that it has: properties of all devices, connections in both directions, messages of many sizes with several under
 * way, receives that are longer than what comes, and a peer that goes away.
 */
#include "base/clock.h"
#include "base/test.h"
#include "link/address.h"
#include "remote/plugin/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIMIT_MS 30000
enum { UNDER_WAY = 8, ROOM = 3 << 20 };

static void *library;
static const kolo_plugin_abi_t *const versions[] = {&kolo_plugin_v8, &kolo_plugin_v9, &kolo_plugin_v10,
                                                    &kolo_plugin_v11};
static kolo_plugin_t p;
static char *sent, *came;
static void *sender, *receiver, *sent_memory, *came_memory;

static void quiet(int level, unsigned long parts, const char *file, int line, const char *fmt, ...)
{
    (void)level;
    (void)parts;
    (void)file;
    (void)line;
    (void)fmt;
}

static void begin(const kolo_plugin_abi_t *abi)
{
    memset(&p, 0, sizeof p);
    p.library = library;
    p.abi = abi;
    p.table = dlsym(library, abi->symbol);
    assert_non_null(p.table);
    kolo_plugin_take(&p);
    assert_string_equal(p.own_name, "Kolo");
    assert_int_equal(abi->init(&p, quiet), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.devices(&p.ndevices), KOLO_NCCL_SUCCESS);
    assert_true(p.ndevices > 0);
}

enum { STRANGERS = 24 };
static int strangers[STRANGERS], nstrangers;

static void call_as_strangers(const char *handle)
{
    kolo_address_t address;
    struct sockaddr_storage sa;
    char noise[200];
    memcpy(&address, handle + sizeof(uint64_t), sizeof address); /* behind its magic */
    socklen_t length = kolo_address_to_sockaddr(&address, &sa);
    memset(noise, 7, sizeof noise);
    for (int i = 0; i < nstrangers; i++) {
        strangers[i] = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(strangers[i], (struct sockaddr *)&sa, length), 0);
        if (i % 4 == 0) assert_int_equal(send(strangers[i], noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
    }
}

static void join(int device)
{
    _Alignas(64) char handle[KOLO_NCCL_HANDLE_BYTES] = {0}, copy[KOLO_NCCL_HANDLE_BYTES];
    void *listener = NULL, *offload = NULL;
    uint64_t until = kolo_deadline_ms(LIMIT_MS);
    sender = receiver = NULL;
    assert_int_equal(p.abi->listen(&p, device, handle, &listener), KOLO_NCCL_SUCCESS);
    memcpy(copy, handle, sizeof copy); /* as it travels */
    call_as_strangers(handle);
    while (!sender || !receiver) {
        if (!sender) assert_int_equal(p.abi->connect(&p, device, copy, &sender), KOLO_NCCL_SUCCESS);
        if (!receiver) assert_int_equal(p.accept(listener, &receiver, &offload), KOLO_NCCL_SUCCESS);
        assert_true(kolo_now_ns() < until);
    }
    assert_int_equal(p.close_listen(listener), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.register_memory(sender, sent, ROOM, KOLO_NCCL_PTR_HOST, &sent_memory), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.register_memory(receiver, came, ROOM, KOLO_NCCL_PTR_HOST, &came_memory), KOLO_NCCL_SUCCESS);
    void *none = NULL;
    assert_int_not_equal(p.register_memory(sender, sent, ROOM, KOLO_NCCL_PTR_CUDA, &none), KOLO_NCCL_SUCCESS);
}

static void leave(void)
{
    assert_int_equal(p.deregister(sender, sent_memory), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.deregister(receiver, came_memory), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.close_send(sender), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.close_receive(receiver), KOLO_NCCL_SUCCESS);
}

typedef struct {
    void *request;
    uint32_t bytes, at;
} flight_t;

static bool is_done(flight_t *f)
{
    int done = 0, bytes = -1;
    assert_int_equal(p.test(f->request, &done, &bytes), KOLO_NCCL_SUCCESS);
    if (!done) return false;
    assert_int_equal(bytes, f->bytes);
    f->request = NULL;
    return true;
}

/* `count` messages of `bytes` each, up to eight under way at both ends. */
static void carry(uint32_t bytes, uint32_t count)
{
    flight_t out[UNDER_WAY] = {{0}}, in[UNDER_WAY] = {{0}};
    uint32_t begun[2] = {0, 0}, done[2] = {0, 0};
    uint64_t until = kolo_deadline_ms(LIMIT_MS);
    uint32_t stride = ROOM / UNDER_WAY;
    assert_true(bytes <= stride);
    for (uint32_t i = 0; i < ROOM; i++) sent[i] = (char)(i * 7 + bytes);
    memset(came, 0, ROOM);
    while (done[0] < count || done[1] < count) {
        flight_t *o = &out[begun[0] % UNDER_WAY], *i = &in[begun[1] % UNDER_WAY];
        if (begun[1] < count && begun[1] - done[1] < UNDER_WAY) { /* room for more than will come */
            i->at = begun[1] % UNDER_WAY * stride;
            i->bytes = bytes;
            assert_int_equal(p.abi->irecv(&p, receiver, came + i->at, stride, came_memory, &i->request), 0);
            begun[1] += i->request != NULL;
        }
        if (begun[0] < count && begun[0] - done[0] < UNDER_WAY) {
            o->at = begun[0] % UNDER_WAY * stride;
            o->bytes = bytes;
            assert_int_equal(p.abi->isend(&p, sender, sent + o->at, bytes, sent_memory, &o->request), 0);
            begun[0] += o->request != NULL;
        }
        if (begun[0] > done[0]) done[0] += is_done(&out[done[0] % UNDER_WAY]);
        if (begun[1] > done[1] && is_done(&in[done[1] % UNDER_WAY])) {
            uint32_t at = in[done[1]++ % UNDER_WAY].at;
            assert_memory_equal(came + at, sent + at, bytes);
            memset(came + at, 0, bytes);
        }
        assert_true(kolo_now_ns() < until);
    }
}

static void every_version_says_what_it_has(void **state)
{
    (void)state;
    for (size_t v = 0; v < KOLO_COUNTOF(versions); v++) {
        begin(versions[v]);
        for (int i = 0; i < p.ndevices; i++) {
            kolo_plugin_properties_t props = {0};
            assert_int_equal(p.abi->properties(&p, i, &props), KOLO_NCCL_SUCCESS);
            assert_true(props.name && props.name[0]);
            assert_int_equal(props.pointers, KOLO_NCCL_PTR_HOST);
            assert_true(props.mbps > 0 && props.max_comms > 0 && props.max_receives == 1 &&
                        props.offload_kind == 0);
        }
        kolo_plugin_properties_t none;
        assert_int_not_equal(p.abi->properties(&p, p.ndevices, &none), KOLO_NCCL_SUCCESS);
    }
}

static void messages_come_whole_in_every_version(void **state)
{
    static const uint32_t sizes[] = {0, 1, 8, 4096, 65535, 65536, 65537, ROOM / UNDER_WAY};
    (void)state;
    for (size_t v = 0; v < KOLO_COUNTOF(versions); v++) {
        begin(versions[v]);
        join((int)v % p.ndevices);
        for (size_t s = 0; s < KOLO_COUNTOF(sizes); s++) carry(sizes[s], 50);
        leave();
    }
}

static void a_peer_that_has_gone_is_an_error(void **state)
{
    void *request = NULL;
    int result = KOLO_NCCL_SUCCESS, done = 0, bytes;
    uint64_t until = kolo_deadline_ms(LIMIT_MS);
    (void)state;
    begin(&kolo_plugin_v11);
    join(0);
    carry(4096, 3);
    while (!request)
        assert_int_equal(p.abi->irecv(&p, receiver, came, 64, came_memory, &request), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.deregister(sender, sent_memory), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.close_send(sender), KOLO_NCCL_SUCCESS);
    while (result == KOLO_NCCL_SUCCESS && kolo_now_ns() < until) {
        result = p.test(request, &done, &bytes);
        assert_int_equal(done, 0);
    }
    assert_int_equal(result, KOLO_NCCL_REMOTE_ERROR);
    assert_int_equal(p.deregister(receiver, came_memory), KOLO_NCCL_SUCCESS);
    assert_int_equal(p.close_receive(receiver), KOLO_NCCL_SUCCESS);
}

/* Silent ones, more than are listened to at a time, and some that say what proves nothing. */
static void strangers_do_not_hold_a_listener_up(void **state)
{
    (void)state;
    begin(versions[0]);
    nstrangers = STRANGERS;
    join(0);
    carry(4096, 10);
    leave();
    while (nstrangers > 0) close(strangers[--nstrangers]);
}

static void a_handle_of_somebody_else_is_refused(void **state)
{
    char handle[KOLO_NCCL_HANDLE_BYTES];
    void *comm = NULL;
    (void)state;
    begin(&kolo_plugin_v11);
    memset(handle, 0x5a, sizeof handle);
    memset(handle + sizeof handle / 2, 0, sizeof handle / 2); /* where a half-made connection would be */
    assert_int_equal(p.abi->connect(&p, 0, handle, &comm), KOLO_NCCL_INVALID_ARGUMENT);
    assert_null(comm);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_version_says_what_it_has),
        cmocka_unit_test(messages_come_whole_in_every_version),
        cmocka_unit_test(a_peer_that_has_gone_is_an_error),
        cmocka_unit_test(strangers_do_not_hold_a_listener_up),
        cmocka_unit_test(a_handle_of_somebody_else_is_refused),
    };
    library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    sent = malloc(ROOM);
    came = malloc(ROOM);
    if (!library || !sent || !came) {
        fprintf(stderr, "the plug-in cannot be loaded: %s\n", argc > 1 ? dlerror() : "which?");
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(sent);
    free(came);
    return failed;
}
