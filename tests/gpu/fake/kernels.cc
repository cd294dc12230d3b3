// SPDX-License-Identifier: Apache-2.0
//
// The kernels that the fake driver knows: the product's, from the same source that nvcc reads, that of the soak
// test, and two small ones by which the fake itself is tested. A block is one thread.
#include "fake.h"

#include "gpu/cuda/kernels.cu"
#include "soak.cu"

#include <sched.h>
#include <string.h>
#include <time.h>

thread_local uint32_t kolo_block, kolo_blocks;

// Polls of a block that waits. A hundred blocks that only yield would keep a core from the threads whose work they
// wait for, minutes long where the scheduler sets back who yields: a long wait sleeps now and then.
extern "C" void kolo_pause(void)
{
    static thread_local uint32_t polls;
    const struct timespec nap = {0, 50000};
    if (++polls % 64 == 0)
        nanosleep(&nap, nullptr);
    else
        sched_yield();
}

void (*kolo_cuda_tell)(const kolo_cuda_told_t *);
void fake_listen(void (*tell)(const kolo_cuda_told_t *))
{
    kolo_cuda_tell = tell;
}

extern "C" bool kolo_tears(void)
{
    static thread_local uint32_t n;
    return fake_tears() && ++n % 3 == 0;
}

void fake_block_enter(unsigned index, unsigned blocks, unsigned)
{
    kolo_block = index;
    kolo_blocks = blocks;
}

namespace
{

// p[i] += add for the block's share.
void test_add(uint32_t *p, uint64_t n, uint32_t add)
{
    for (uint64_t i = kolo_block; i < n; i += kolo_blocks) p[i] += add;
}

// Comes, and waits until `n` blocks have come, of this launch or of others; or until it is told to end.
struct test_meet_args {
    uint32_t *came, *stop;
    uint32_t n;
    unsigned char filling[2000];
};
void test_meet(test_meet_args a)
{
    __atomic_fetch_add(a.came, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(a.came, __ATOMIC_ACQUIRE) < a.n && !__atomic_load_n(a.stop, __ATOMIC_ACQUIRE))
        kolo_pause();
}

template <typename T> T get(void *const *params, int i)
{
    T value;
    memcpy(&value, params[i], sizeof value);
    return value;
}

template <auto kernel, typename A> void call(void *const *p)
{
    kernel(get<A>(p, 0));
}
template <auto kernel, typename A, typename B, typename C> void call(void *const *p)
{
    kernel(get<A>(p, 0), get<B>(p, 1), get<C>(p, 2));
}

} // namespace

// clang-format off
#define ROW1(name, A)       {#name, 1, {sizeof(A)}, call<name, A>}
#define ROW3(name, A, B, C) {#name, 3, {sizeof(A), sizeof(B), sizeof(C)}, call<name, A, B, C>}
// clang-format on

const fake_kernel_t fake_kernels[] = {
    ROW3(test_add, uint32_t *, uint64_t, uint32_t),
    ROW1(test_meet, test_meet_args),
    ROW1(kolo_cuda_ll_int8, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_uint8, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_int16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_uint16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_int32, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_uint32, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_int64, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_uint64, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_float16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_bfloat16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_float32, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_float64, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_e4m3, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll_e5m2, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_int8, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_uint8, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_int16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_uint16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_int32, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_uint32, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_int64, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_uint64, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_float16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_bfloat16, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_float32, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_float64, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_e4m3, kolo_cuda_args_t),
    ROW1(kolo_cuda_ll128_e5m2, kolo_cuda_args_t),
    ROW1(kolo_cuda_staged_int8, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_uint8, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_int16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_uint16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_int32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_uint32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_int64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_uint64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_float16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_bfloat16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_float32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_float64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_e4m3, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_staged_e5m2, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_int8, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_uint8, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_int16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_uint16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_int32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_uint32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_int64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_uint64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_float16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_bfloat16, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_float32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_float64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_e4m3, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_two_step_e5m2, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_chain_int32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_chain_uint32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_chain_int64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_chain_uint64, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_chain_float32, kolo_cuda_long_args_t),
    ROW1(kolo_cuda_chain_float64, kolo_cuda_long_args_t),
    ROW1(soak_turn, soak_args_t),
    ROW1(kolo_cuda_plan_int8, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_uint8, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_int16, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_uint16, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_int32, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_uint32, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_int64, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_uint64, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_float16, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_bfloat16, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_float32, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_float64, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_e4m3, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_plan_e5m2, kolo_cuda_plan_args_t),
    ROW1(kolo_cuda_lift, kolo_cuda_lift_args_t),
    ROW1(kolo_cuda_products, kolo_cuda_blend_args_t),
    ROW1(kolo_cuda_product_sums, kolo_cuda_blend_args_t),
    ROW1(kolo_cuda_blend, kolo_cuda_blend_args_t),
    ROW1(kolo_cuda_messages_few, kolo_cuda_p2p_args_t),
    ROW1(kolo_cuda_messages, kolo_cuda_p2p_many_t),
    ROW1(kolo_cuda_messages_table, kolo_cuda_p2p_args_t),
    ROW1(kolo_cuda_table, kolo_cuda_table_args_t),
    {nullptr, 0, {}, nullptr},
};
