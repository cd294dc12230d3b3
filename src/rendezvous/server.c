/* SPDX-License-Identifier: Apache-2.0
 *
 * A server: one task of a cluster, with its manager, its door (the address at which it listens, from the cluster or
 * announced where the tasks meet) and its adapter. A restarted task has a new incarnation.
 */
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/process.h"
#include "comm/params.h"
#include "meet/id.h"
#include "rendezvous/cluster.h"
#include "rendezvous/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECRET_MIN 16

static const kolo_param_t rows[] = {
    {"KOLO_RENDEZVOUS_CREDITS", KOLO_PARAM_INT, "256", 1, KOLO_CHANNEL_CREDITS, NULL, false,
     "messages of another task that may be on their way to this one over a channel",
     &kolo_rendezvous_param_credits},
    {"KOLO_RENDEZVOUS_CHUNK", KOLO_PARAM_SIZE, "1G", 64, INT64_C(1) << 31, NULL, false,
     "most bytes of a tensor that one write carries; larger ones take several", &kolo_rendezvous_param_chunk},
    {"KOLO_RENDEZVOUS_INLINE", KOLO_PARAM_SIZE, "1K", 0, KOLO_MESSAGE_VALUE_MAX, NULL, false,
     "tensors of up to this many bytes come with the answer to a request; larger ones are written to their place, "
     "but the first of a key comes with the answer up to 4K (0: none does)",
     &kolo_rendezvous_param_inline},
    {"KOLO_RENDEZVOUS_THREADS", KOLO_PARAM_INT, "2", 1, 64, NULL, false,
     "threads of a server on which callbacks of receives from other tasks run", &kolo_rendezvous_param_threads},
    {"KOLO_RENDEZVOUS_WAITING", KOLO_PARAM_SIZE, "0", 0, INT64_MAX, NULL, false,
     "most bytes of tensors in host memory that a task has sent and that wait for their receives; a send beyond is "
     "refused, unless its receive waits (0: half of the memory that the process can have)",
     &kolo_rendezvous_param_waiting},
};
const kolo_param_table_t kolo_rendezvous_params = {"rendezvous", rows, KOLO_COUNTOF(rows), NULL};

typedef enum { SERVER_NEW, SERVER_STARTED, SERVER_STOPPING, SERVER_STOPPED } server_state_t;
struct kolo_server {
    kolo_slot_t slot;
    pthread_mutex_t lock; /* held while it starts or stops, which may wait for callbacks */
    kolo_gate_t stopped;
    _Atomic int state;
    kolo_cluster_t cluster;
    kolo_rendezvous_manager_t manager;
    kolo_adapter_t adapter;
    bool begun; /* the adapter was started, maybe in vain */
};

static kolo_slots_t servers = KOLO_SLOTS_OF(struct kolo_server);

/* ---- making one ---- */

static kolo_status_t check_config(const kolo_server_config_t *config)
{
    if (config == NULL || config->size < sizeof *config || config->magic != KOLO_SERVER_CONFIG_MAGIC)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "server_create: the configuration does not begin with KOLO_SERVER_CONFIG_INITIALIZER");
    KOLO_TRY(kolo_rendezvous_check_given("server_create", "cluster of the configuration", config->cluster));
    KOLO_TRY(kolo_rendezvous_check_given("server_create", "task of the configuration", config->task));
    if (config->connect_timeout_ms <= 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "server_create: connect_timeout_ms is %d, it needs at least 1 ms",
                         config->connect_timeout_ms);
    if (config->secret && config->secret_bytes < SECRET_MIN)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "server_create: the secret has %zu bytes, it needs at least %d",
                         config->secret_bytes, SECRET_MIN);
    return KOLO_OK;
}

kolo_status_t kolo_adapter_read_secret(const kolo_server_config_t *config, kolo_key_t *key)
{
    static const kolo_key_t zero;
    if (config->secret == NULL) return kolo_secret_read("rendezvous", key);
    kolo_auth_derive(&zero, "rendezvous", config->secret, config->secret_bytes, key);
    return kolo_secret_stretch(config->secret, config->secret_bytes, key);
}

/* Sets up where the tasks of a cluster without addresses meet: the first one has its door at KOLO_COMM_ID. */
static kolo_status_t set_up_meeting(kolo_cluster_t *cluster, kolo_adapter_t *adapter)
{
    if (!cluster->meets) return KOLO_OK;
    if (!kolo_id_has_address())
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "server_create: the cluster names no addresses, so its tasks meet at KOLO_COMM_ID, which is not set");
    kolo_status_t status = kolo_address_parse(kolo_meet_values.comm_id, &cluster->tasks[0].address);
    if (status != KOLO_OK) return kolo_fail_prefix(status, "KOLO_COMM_ID: ");
    kolo_listener_reserve(kolo_address_port(&cluster->tasks[0].address));
    return kolo_meeting_create(adapter);
}

/* Fails for a name that is no task. kolo-top writes names shorter than they are. */
static kolo_status_t no_task(const char *call, const kolo_cluster_t *cluster, const char *name)
{
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the cluster has no task \"%.95s\"; its first one is %s", call,
                     name, cluster->tasks[0].name);
}

static kolo_status_t set_up(kolo_server_t server, const kolo_server_config_t *config)
{
    kolo_adapter_t *adapter = &server->adapter;
    kolo_protocol_t protocol;
    kolo_status_t status = kolo_cluster_protocol(config->protocol ? config->protocol : "kolo", &protocol);
    if (status != KOLO_OK) return kolo_fail_prefix(status, "server_create: ");
    KOLO_TRY(kolo_cluster_parse(config->cluster, &server->cluster));
    adapter->me = kolo_cluster_find(&server->cluster, config->task);
    if (adapter->me < 0) return no_task("server_create", &server->cluster, config->task);
    KOLO_TRY(kolo_adapter_read_secret(config, &adapter->key));
    KOLO_TRY(kolo_rendezvous_manager_create(&server->manager));
    kolo_rendezvous_manager_set_remote(server->manager, &kolo_adapter_remote, adapter);
    adapter->manager = server->manager;
    adapter->tasks = server->cluster.tasks;
    adapter->by_name = server->cluster.by_name;
    adapter->ntasks = server->cluster.ntasks;
    adapter->kinds = protocol.kinds;
    adapter->mode = protocol.mode;
    adapter->connect_ms = config->connect_timeout_ms;
    KOLO_TRY(kolo_adapter_init(adapter));
    return set_up_meeting(&server->cluster, adapter);
}

kolo_status_t kolo_server_create(kolo_server_t *out, const kolo_server_config_t *config)
{
    KOLO_TRY(kolo_comm_library_init());
    KOLO_TRY(kolo_rendezvous_check_given("server_create", "result", out));
    KOLO_TRY(check_config(config));
    kolo_meet_process_init();
    kolo_server_t server = kolo_slots_take(&servers);
    if (server == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "server_create: no memory");
    pthread_mutex_init(&server->lock, NULL);
    kolo_status_t status = set_up(server, config);
    if (status == KOLO_OK) {
        *out = server;
        return KOLO_OK;
    }
    kolo_server_destroy(server);
    return status;
}

/* ---- life ---- */

/* Threads of the library cannot wait for themselves, nor can a child of fork() for its parent's. */
static kolo_status_t check_caller(kolo_server_t server, const char *call)
{
    KOLO_TRY(kolo_rendezvous_check_handle(call, "server", server));
    KOLO_TRY(kolo_rendezvous_check_process(server->manager));
    return kolo_rendezvous_check_wait(call, KOLO_THREAD_OF_PROGRAM);
}

static kolo_status_t start(kolo_server_t server)
{
    kolo_adapter_t *adapter = &server->adapter;
    const char *task = server->cluster.tasks[adapter->me].name;
    do {
        KOLO_TRY(kolo_random(&adapter->incarnation, sizeof adapter->incarnation));
    } while (adapter->incarnation == 0);
    server->begun = true;
    KOLO_TRY(kolo_adapter_start(adapter));
    return kolo_rendezvous_manager_initialize(server->manager, task, adapter->incarnation);
}

kolo_status_t kolo_server_start(kolo_server_t server)
{
    KOLO_TRY(check_caller(server, "server_start"));
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&server->lock);
    int state = atomic_load(&server->state);
    if (state == SERVER_STOPPING || state == SERVER_STOPPED) {
        status = kolo_fail(KOLO_ERR_INVALID_USAGE,
                           "server_start: the server of %s has been ended and cannot be started again",
                           server->cluster.tasks[server->adapter.me].name);
    } else if (state == SERVER_NEW) {
        status = start(server);
        atomic_store(&server->state, status == KOLO_OK ? SERVER_STARTED : SERVER_STOPPED);
    }
    pthread_mutex_unlock(&server->lock);
    if (status != KOLO_OK) kolo_gate_open(&server->stopped);
    return status;
}

kolo_status_t kolo_server_stop(kolo_server_t server)
{
    KOLO_TRY(check_caller(server, "server_stop"));
    pthread_mutex_lock(&server->lock);
    kolo_thread_of_t before = kolo_rendezvous_enter(KOLO_THREAD_OF_CHANNELS);
    atomic_store(&server->state, SERVER_STOPPING);
    kolo_adapter_stop(&server->adapter);
    atomic_store(&server->state, SERVER_STOPPED);
    (void)kolo_rendezvous_enter(before);
    pthread_mutex_unlock(&server->lock);
    kolo_gate_open(&server->stopped);
    return KOLO_OK;
}

static void describe_join(void *arg, char *buf, size_t bytes)
{
    const kolo_server_t server = arg;
    snprintf(buf, bytes, "the server of %s to be stopped", server->cluster.tasks[server->adapter.me].name);
}

/* Ends a server that nobody has started. Who starts or stops it at this moment holds the lock, maybe for longer
 * than a join may wait. */
static void end_if_new(kolo_server_t server)
{
    if (pthread_mutex_trylock(&server->lock) != 0) return;
    bool is_new = atomic_load(&server->state) == SERVER_NEW;
    if (is_new) atomic_store(&server->state, SERVER_STOPPED);
    pthread_mutex_unlock(&server->lock);
    if (is_new) kolo_gate_open(&server->stopped); /* for joins that found the lock taken by this one */
}

kolo_status_t kolo_server_join(kolo_server_t server, int timeout_ms)
{
    kolo_wait_t wait;
    KOLO_TRY(check_caller(server, "server_join"));
    KOLO_TRY(kolo_rendezvous_check_timeout("server_join", timeout_ms));
    end_if_new(server);
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(timeout_ms), describe_join, server, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&server->stopped);
        if (atomic_load(&server->state) == SERVER_STOPPED) return KOLO_OK;
        KOLO_TRY(kolo_gate_wait(&server->stopped, ticket, &wait));
        wait.stall_ns = 0; /* to serve for long is no stall */
    }
}

static void describe_asking(void *arg, char *buf, size_t bytes)
{
    const kolo_server_t server = arg;
    snprintf(buf, bytes, "%u threads that hand receives to the stopped server of %s",
             atomic_load(&server->manager->asking), server->cluster.tasks[server->adapter.me].name);
}

/* Waits for threads that are between two instructions: a receive that was listed before its step was ended. */
static void await_asking(kolo_server_t server)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_asking, server, 1);
    while (atomic_load(&server->manager->asking) > 0) (void)kolo_wait_pause(&wait);
    kolo_wait_end(&wait);
}

kolo_status_t kolo_server_destroy(kolo_server_t server)
{
    if (server == NULL) return KOLO_OK;
    KOLO_TRY(kolo_rendezvous_check_handle("server_destroy", "server", server));
    if (server->manager) {
        KOLO_TRY(kolo_server_stop(server));
        await_asking(server);
        if (server->manager->watch) kolo_fd_close(server->adapter.watch_fd); /* kolo-top finds it no more */
        kolo_rendezvous_manager_end(server->manager);
        kolo_adapter_fini(&server->adapter);
    }
    kolo_cluster_free(&server->cluster);
    kolo_auth_wipe(&server->adapter.key, sizeof server->adapter.key);
    pthread_mutex_destroy(&server->lock);
    (void)kolo_slot_end(server);
    kolo_slots_give(&servers, server);
    return KOLO_OK;
}

/* ---- questions ---- */

kolo_status_t kolo_server_manager(kolo_server_t server, kolo_rendezvous_manager_t *manager)
{
    KOLO_TRY(kolo_rendezvous_check_handle("server_manager", "server", server));
    KOLO_TRY(kolo_rendezvous_check_given("server_manager", "result", manager));
    *manager = server->manager;
    return KOLO_OK;
}

static kolo_call_failure_t last_failure(kolo_adapter_t *adapter, int task)
{
    pthread_mutex_lock(&adapter->lock);
    kolo_call_failure_t failure = adapter->failures[task];
    pthread_mutex_unlock(&adapter->lock);
    return failure;
}

typedef struct {
    kolo_server_t server;
    int task;
} asked_t;

static void describe_asked(void *arg, char *buf, size_t bytes)
{
    const asked_t *asked = arg;
    const kolo_server_t server = asked->server;
    const kolo_cluster_task_t *task = &server->cluster.tasks[asked->task];
    char at[KOLO_ADDRESS_TEXT_BYTES] = "KOLO_COMM_ID, where the tasks meet";
    if (!server->cluster.meets) kolo_address_print(&task->address, at);
    snprintf(buf, bytes, "%s (at %s) to tell its incarnation; it is called until its server is started", task->name,
             at);
}

/* Looks at calls that have failed since `seen`: one that found the task gone is made again, it may be about to come
 * back. */
static kolo_status_t judge_calls(kolo_adapter_t *adapter, int task, uint64_t *seen)
{
    kolo_call_failure_t failure = last_failure(adapter, task);
    bool fresh = failure.count != *seen;
    *seen = failure.count;
    if (!fresh || failure.status == KOLO_ERR_REMOTE) return kolo_adapter_call(adapter, task);
    return kolo_fail(failure.status, "%s", failure.why);
}

kolo_status_t kolo_server_incarnation(kolo_server_t server, const char *name, int timeout_ms, uint64_t *incarnation)
{
    static const char call[] = "server_incarnation";
    KOLO_TRY(kolo_rendezvous_check_handle(call, "server", server));
    KOLO_TRY(kolo_rendezvous_check_given(call, "task", name));
    KOLO_TRY(kolo_rendezvous_check_given(call, "result", incarnation));
    KOLO_TRY(kolo_rendezvous_check_timeout(call, timeout_ms));
    KOLO_TRY(kolo_rendezvous_check_process(server->manager));
    kolo_adapter_t *adapter = &server->adapter;
    int task = kolo_cluster_find(&server->cluster, name), state = atomic_load(&server->state);
    if (task < 0) return no_task(call, &server->cluster, name);
    if (state != SERVER_STARTED)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: this task's server is not running", call);
    if (task == adapter->me) {
        *incarnation = adapter->incarnation;
        return KOLO_OK;
    }
    if (atomic_load(&adapter->incarnations[task]) == 0) /* the channels' thread has to find it */
        KOLO_TRY(kolo_rendezvous_check_wait(call, KOLO_THREAD_OF_CALLBACKS));
    asked_t asked = {server, task};
    kolo_wait_t wait;
    uint64_t deadline = kolo_deadline_ms(timeout_ms ? timeout_ms : adapter->connect_ms);
    kolo_wait_init(&wait, NULL, deadline, describe_asked, &asked, 1);
    uint64_t seen = last_failure(adapter, task).count;
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&adapter->changed);
        uint64_t found = atomic_load(&adapter->incarnations[task]);
        if (found) {
            *incarnation = found;
            return KOLO_OK;
        }
        if (atomic_load(&server->state) != SERVER_STARTED)
            return kolo_fail(KOLO_ERR_ABORTED, "%s: this task's server has been stopped", call);
        KOLO_TRY(judge_calls(adapter, task, &seen));
        KOLO_TRY(kolo_gate_wait(&adapter->changed, ticket, &wait));
    }
}
