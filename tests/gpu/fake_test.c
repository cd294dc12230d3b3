/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver itself: that it does what a driver does, in order and asynchronously, and that it refuses what a
 * driver refuses or what ends badly later.
 */
#include "base/test.h"
#include "fake/cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call)       assert_int_equal((call), KOLO_CU_SUCCESS)
#define IS(want, call) assert_int_equal((call), (want))
#define MB             ((size_t)1 << 20)

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, TOO_LARGE = 720 };

static kolo_cu_ctx_t ctx[2];
static kolo_cu_module_t module;
static kolo_cu_func_t add, meet;

typedef struct { /* as in kernels.cc */
    uint32_t *came, *stop, n;
    unsigned char filling[2000];
} meet_args_t;

static int start(void **state)
{
    (void)state;
    if (cuInit(0)) return 1;
    for (int i = 0; i < 2; i++)
        if (cuDevicePrimaryCtxRetain(&ctx[i], i)) return 1;
    if (cuCtxSetCurrent(ctx[0]) || cuModuleLoadData(&module, "any")) return 1;
    return cuModuleGetFunction(&add, module, "test_add") || cuModuleGetFunction(&meet, module, "test_meet");
}

/* For kernels: where the CPU has protection keys the host may not read there. */
static void *at(kolo_cu_ptr_t p)
{
    return (void *)(uintptr_t)p; /* NOLINT: a driver's address */
}

static uint32_t word_at(kolo_cu_ptr_t p)
{
    kolo_cu_stream_t s;
    uint32_t word = 0;
    OK(cuStreamCreate(&s, KOLO_CU_STREAM_NON_BLOCKING)); /* one that waits for nobody */
    OK(cuMemcpyAsync((uintptr_t)&word, p, sizeof word, s));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
    return word;
}

static kolo_cu_ptr_t words(size_t n)
{
    kolo_cu_ptr_t p;
    OK(cuMemAlloc_v2(&p, n * 4));
    OK(cuMemsetD8Async(p, 0, n * 4, NULL));
    OK(cuStreamSynchronize(NULL));
    return p;
}

static void launch_add(kolo_cu_ptr_t p, uint64_t n, uint32_t value, unsigned blocks, kolo_cu_stream_t stream)
{
    void *params[] = {&p, &n, &value};
    OK(cuLaunchKernel(add, blocks, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

/* Holds the stream until release() is called. */
typedef struct {
    uint32_t *came, *stop; /* pinned */
} gate_t;

static gate_t hold_stream(kolo_cu_stream_t stream)
{
    gate_t g;
    void *host;
    OK(cuMemHostAlloc(&host, 8, KOLO_CU_HOST_MAPPED));
    g.came = host;
    g.stop = g.came + 1;
    *g.came = *g.stop = 0;
    meet_args_t args = {.came = g.came, .stop = g.stop, .n = 1000};
    OK(cuLaunchKernel(meet, 1, 1, 1, 32, 1, 1, 0, stream, (void *[]){&args}, NULL));
    return g;
}

static void release(gate_t g, kolo_cu_stream_t stream)
{
    __atomic_store_n(g.stop, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
    OK(cuMemFreeHost(g.came));
}

static void work_on_a_stream_is_in_order_and_asynchronous(void **state)
{
    (void)state;
    kolo_cu_stream_t s;
    uint32_t out[100];
    kolo_cu_ptr_t p = words(100);
    OK(cuStreamCreate(&s, KOLO_CU_STREAM_NON_BLOCKING));
    gate_t gate = hold_stream(s);
    OK(cuMemsetD8Async(p, 1, 400, s));
    for (uint32_t i = 0; i < 50; i++) launch_add(p, 100, i, 3, s);
    IS(KOLO_CU_NOT_READY, cuStreamQuery(s));
    release(gate, s);
    OK(cuStreamQuery(s));
    OK(cuMemcpyAsync((uintptr_t)out, p, 400, s)); /* pageable memory: complete when it returns */
    for (int i = 0; i < 100; i++) assert_int_equal(out[i], 0x01010101 + 49 * 50 / 2);
    OK(cuStreamDestroy_v2(s));
    OK(cuMemFree_v2(p));
}

static void streams_wait_for_events(void **state)
{
    (void)state;
    kolo_cu_stream_t a, b;
    kolo_cu_event_t start_a, end_a, end_b;
    float ms;
    kolo_cu_ptr_t p = words(1000);
    OK(cuStreamCreate(&a, KOLO_CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, KOLO_CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&start_a, 0));
    OK(cuEventCreate(&end_a, 0));
    OK(cuEventCreate(&end_b, KOLO_CU_EVENT_NO_TIMING));
    OK(cuStreamWaitEvent(b, end_a, 0)); /* never recorded: no wait */
    OK(cuStreamSynchronize(b));
    OK(cuEventRecord(start_a, a));
    gate_t gate = hold_stream(a);
    launch_add(p, 1000, 5, 1, a);
    OK(cuEventRecord(end_a, a));
    OK(cuStreamWaitEvent(b, end_a, 0));
    OK(cuMemsetD8Async(p, 0, 4000, b));
    OK(cuEventRecord(end_b, b));
    IS(KOLO_CU_NOT_READY, cuEventQuery(end_b));
    IS(KOLO_CU_NOT_READY, cuEventElapsedTime_v2(&ms, start_a, end_a));
    release(gate, a);
    OK(cuEventSynchronize(end_b));
    assert_int_equal(word_at(p), 0);
    OK(cuEventElapsedTime_v2(&ms, start_a, end_a));
    assert_true(ms >= 0);
    IS(INVALID_HANDLE, cuEventElapsedTime_v2(&ms, start_a, end_b)); /* made without a clock */
    OK(cuEventDestroy_v2(start_a));
    OK(cuEventDestroy_v2(end_a));
    OK(cuEventDestroy_v2(end_b));
    IS(INVALID_HANDLE, cuEventQuery(end_b));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
    OK(cuMemFree_v2(p));
}

static void the_default_stream_waits_for_blocking_streams_and_they_for_it(void **state)
{
    (void)state;
    kolo_cu_stream_t blocking, other, legacy = (kolo_cu_stream_t)(uintptr_t)1, own = (kolo_cu_stream_t)(uintptr_t)2;
    kolo_cu_ptr_t p = words(1), q = words(1), r = words(1);
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamCreate(&other, KOLO_CU_STREAM_NON_BLOCKING));
    gate_t gate = hold_stream(blocking);
    launch_add(p, 1, 1, 1, legacy);
    launch_add(q, 1, 1, 1, own);
    launch_add(r, 1, 1, 1, other);
    OK(cuStreamSynchronize(other));
    assert_int_equal(word_at(r), 1);
    IS(KOLO_CU_NOT_READY, cuStreamQuery(NULL));
    IS(KOLO_CU_NOT_READY, cuStreamQuery(own)); /* it waits for the legacy stream, as all that block */
    release(gate, blocking);
    OK(cuCtxSynchronize());
    assert_int_equal(word_at(p) + word_at(q), 2);
    OK(cuStreamDestroy_v2(blocking));
    OK(cuStreamDestroy_v2(other));
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(q));
    OK(cuMemFree_v2(r));
}

static void blocks_of_several_launches_run_together(void **state)
{
    (void)state;
    kolo_cu_stream_t s[3];
    kolo_cu_ptr_t p = words(2);
    meet_args_t args = {.came = at(p), .stop = (uint32_t *)at(p) + 1, .n = 3 * 16};
    for (int i = 0; i < 3; i++) {
        OK(cuStreamCreate(&s[i], KOLO_CU_STREAM_NON_BLOCKING));
        OK(cuLaunchKernel(meet, 16, 1, 1, 512, 1, 1, 0, s[i], (void *[]){&args}, NULL));
    }
    memset(&args, 0xff, sizeof args); /* the launch has its own copy */
    for (int i = 0; i < 3; i++) OK(cuStreamSynchronize(s[i]));
    assert_int_equal(word_at(p), 48);
    for (int i = 0; i < 3; i++) OK(cuStreamDestroy_v2(s[i]));
    OK(cuMemFree_v2(p));
}

static void memory_is_shared_by_descriptor(void **state)
{
    (void)state;
    kolo_cu_mem_prop_t prop = {
        .type = KOLO_CU_PINNED, .handles = KOLO_CU_HANDLE_FD, .location = {KOLO_CU_LOCATION_DEVICE, 1}};
    kolo_cu_access_t who = {{KOLO_CU_LOCATION_DEVICE, 0}, KOLO_CU_ACCESS_READ_WRITE};
    kolo_cu_mem_t mem, again;
    kolo_cu_ptr_t p[2];
    int fd, device = -1, attribute = KOLO_CU_POINTER_DEVICE;
    OK(cuMemCreate(&mem, 4 * MB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, mem, KOLO_CU_HANDLE_FD, 0));
    OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, KOLO_CU_HANDLE_FD)); /* NOLINT */
    close(fd);
    for (int i = 0; i < 2; i++) {
        OK(cuMemAddressReserve(&p[i], 4 * MB, 0, 0, 0));
        OK(cuMemMap(p[i], 4 * MB, 0, i ? again : mem, 0));
        IS(INVALID_VALUE, cuMemsetD8Async(p[i], 1, 8, NULL)); /* no access yet */
        OK(cuMemSetAccess(p[i], 4 * MB, &who, 1));
        OK(cuMemRelease(i ? again : mem));
    }
    OK(cuMemsetD8Async(p[0] + 4 * MB - 8, 7, 8, NULL));
    OK(cuStreamSynchronize(NULL));
    assert_int_equal(word_at(p[1] + 4 * MB - 4), 0x07070707);
    OK(cuPointerGetAttributes(1, &attribute, (void *[]){&device}, p[1] + 12345));
    assert_int_equal(device, 1);
    OK(cuMemsetD8Async(p[0], 7, 4 * MB, NULL));
    OK(cuMemsetD8Async(p[0] + 12, 0, 4 * MB - 20, NULL)); /* as pages that nobody has touched, but for the ends */
    OK(cuStreamSynchronize(NULL));
    static const size_t bytes_at[] = {8, 12, 4092, 4096, 2 * MB, 4 * MB - 12, 4 * MB - 8};
    for (size_t i = 0; i < sizeof bytes_at / sizeof bytes_at[0]; i++)
        assert_int_equal(word_at(p[1] + bytes_at[i]), i % 6 ? 0 : 0x07070707);
    IS(INVALID_VALUE, cuMemAddressFree(p[0], 4 * MB)); /* still mapped */
    for (int i = 0; i < 2; i++) {
        OK(cuMemUnmap(p[i], 4 * MB));
        OK(cuMemAddressFree(p[i], 4 * MB));
    }
    IS(INVALID_VALUE, cuMemRelease(mem));
    fd = open("/dev/null", O_RDONLY);
    IS(INVALID_VALUE, cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, KOLO_CU_HANDLE_FD)); /* NOLINT */
    close(fd);
}

static void pointers_are_told_apart(void **state)
{
    (void)state;
    int attributes[] = {KOLO_CU_POINTER_MEMORY_TYPE, KOLO_CU_POINTER_RANGE_START, KOLO_CU_POINTER_RANGE_SIZE};
    unsigned type = 77;
    kolo_cu_ptr_t begin, p = words(100);
    size_t bytes;
    void *data[] = {&type, &begin, &bytes}, *host;
    OK(cuPointerGetAttributes(3, attributes, data, p + 396));
    assert_true(type == KOLO_CU_MEMORY_DEVICE && begin == p && bytes == 400);
    OK(cuMemHostAlloc(&host, 10, 0));
    OK(cuPointerGetAttributes(3, attributes, data, (uintptr_t)host));
    assert_int_equal(type, KOLO_CU_MEMORY_HOST);
    IS(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&begin, host, 0)); /* not asked for */
    OK(cuMemFreeHost(host));
    OK(cuPointerGetAttributes(3, attributes, data, (uintptr_t)&type)); /* no error, as with the real one */
    assert_int_equal(type, 0);
    OK(cuMemFree_v2(p));
}

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    kolo_cu_stream_t s, gone;
    kolo_cu_event_t e;
    kolo_cu_func_t f;
    kolo_cu_ptr_t p = words(100);
    uint64_t n = 100;
    uint32_t value = 1;
    void *params[] = {&p, &n, &value};
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamCreate(&gone, 0));
    OK(cuEventCreate(&e, 0));
    OK(cuStreamDestroy_v2(gone));
    IS(INVALID_HANDLE, cuStreamSynchronize(gone));
    IS(INVALID_HANDLE, cuMemsetD8Async(p, 0, 4, gone));
    IS(INVALID_VALUE, cuMemsetD8Async(p, 0, 401, s));
    IS(INVALID_VALUE, cuMemcpyAsync(p + 300, p, 101, s));
    IS(INVALID_VALUE, cuMemsetD8Async((uintptr_t)params, 0, 4, s)); /* host memory */
    IS(TOO_LARGE, cuLaunchKernel(add, 529, 1, 1, 512, 1, 1, 0, s, params, NULL));
    IS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 1025, 1, 1, 0, s, params, NULL));
    IS(500, cuModuleGetFunction(&f, module, "no such kernel"));
    OK(cuCtxPushCurrent_v2(ctx[1]));
    IS(INVALID_HANDLE, cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL)); /* loaded on device 0 */
    IS(INVALID_HANDLE, cuMemsetD8Async(p, 0, 4, s));
    IS(INVALID_HANDLE, cuEventRecord(e, NULL));
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuCtxPushCurrent_v2(ctx[0]));
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuMemFree_v2(p));
    IS(INVALID_VALUE, cuMemFree_v2(p));
    IS(INVALID_VALUE, cuMemsetD8Async(p, 0, 4, s));
    OK(cuEventDestroy_v2(e));
    OK(cuStreamDestroy_v2(s));
}

static void *without_context(void *arg)
{
    kolo_cu_stream_t s;
    *(int *)arg = cuStreamCreate(&s, 0);
    return NULL;
}

static void a_context_is_current_on_one_thread(void **state)
{
    (void)state;
    pthread_t thread;
    int result = -1;
    assert_int_equal(pthread_create(&thread, NULL, without_context, &result), 0);
    pthread_join(thread, NULL);
    assert_int_equal(result, INVALID_CONTEXT);
}

/* What the process `fn` runs in ends with. */
static int end_of(void (*fn)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void ask(void)
{
    int n;
    _exit(cuDeviceGetCount(&n));
}

static void a_forked_child_has_no_driver(void **state)
{
    (void)state;
    int status = end_of(ask);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), NOT_INITIALIZED);
}

int main(void)
{
    alarm(100);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_on_a_stream_is_in_order_and_asynchronous),
        cmocka_unit_test(streams_wait_for_events),
        cmocka_unit_test(the_default_stream_waits_for_blocking_streams_and_they_for_it),
        cmocka_unit_test(blocks_of_several_launches_run_together),
        cmocka_unit_test(memory_is_shared_by_descriptor),
        cmocka_unit_test(pointers_are_told_apart),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(a_context_is_current_on_one_thread),
        cmocka_unit_test(a_forked_child_has_no_driver),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
