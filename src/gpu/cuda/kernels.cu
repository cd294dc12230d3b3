/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels by name: a family for each type, and the messages, which have none. kernels.c finds them by these
 * names. Compiled by nvcc into the library, and by a C++ compiler for tests on machines without a GPU.
 */
#include "gpu/cuda/blend.cuh"
#include "gpu/cuda/direct.cuh"
#include "gpu/cuda/lift.cuh"
#include "gpu/cuda/ll.cuh"
#include "gpu/cuda/ll128.cuh"
#include "gpu/cuda/messages.cuh"
#include "gpu/cuda/plan/interp.cuh"

// clang-format off
KOLO_KERNEL kolo_cuda_ll_int8(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<int8_t>(c); }
KOLO_KERNEL kolo_cuda_ll_uint8(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<uint8_t>(c); }
KOLO_KERNEL kolo_cuda_ll_int16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<int16_t>(c); }
KOLO_KERNEL kolo_cuda_ll_uint16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<uint16_t>(c); }
KOLO_KERNEL kolo_cuda_ll_int32(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<int32_t>(c); }
KOLO_KERNEL kolo_cuda_ll_uint32(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<uint32_t>(c); }
KOLO_KERNEL kolo_cuda_ll_int64(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<int64_t>(c); }
KOLO_KERNEL kolo_cuda_ll_uint64(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<uint64_t>(c); }
KOLO_KERNEL kolo_cuda_ll_float16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<kolo_half>(c); }
KOLO_KERNEL kolo_cuda_ll_bfloat16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<kolo_bfloat>(c); }
KOLO_KERNEL kolo_cuda_ll_float32(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<float>(c); }
KOLO_KERNEL kolo_cuda_ll_float64(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<double>(c); }
KOLO_KERNEL kolo_cuda_ll_e4m3(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<kolo_e4m3>(c); }
KOLO_KERNEL kolo_cuda_ll_e5m2(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll<kolo_e5m2>(c); }

KOLO_KERNEL kolo_cuda_ll128_int8(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<int8_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_uint8(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<uint8_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_int16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<int16_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_uint16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<uint16_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_int32(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<int32_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_uint32(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<uint32_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_int64(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<int64_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_uint64(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<uint64_t>(c); }
KOLO_KERNEL kolo_cuda_ll128_float16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<kolo_half>(c); }
KOLO_KERNEL kolo_cuda_ll128_bfloat16(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<kolo_bfloat>(c); }
KOLO_KERNEL kolo_cuda_ll128_float32(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<float>(c); }
KOLO_KERNEL kolo_cuda_ll128_float64(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<double>(c); }
KOLO_KERNEL kolo_cuda_ll128_e4m3(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<kolo_e4m3>(c); }
KOLO_KERNEL kolo_cuda_ll128_e5m2(KOLO_PARAM kolo_cuda_args_t c) { kolo_ll128<kolo_e5m2>(c); }

KOLO_KERNEL kolo_cuda_staged_int8(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int8_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_uint8(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint8_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_int16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int16_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_uint16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint16_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_int32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int32_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_uint32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint32_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_int64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int64_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_uint64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint64_t, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_float16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_half, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_bfloat16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_bfloat, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_float32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<float, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_float64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<double, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_e4m3(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_e4m3, KOLO_LONG_ONE_STEP>(c); }
KOLO_KERNEL kolo_cuda_staged_e5m2(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_e5m2, KOLO_LONG_ONE_STEP>(c); }

KOLO_KERNEL kolo_cuda_two_step_int8(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int8_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_uint8(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint8_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_int16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int16_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_uint16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint16_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_int32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int32_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_uint32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint32_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_int64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int64_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_uint64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint64_t, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_float16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_half, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_bfloat16(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_bfloat, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_float32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<float, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_float64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<double, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_e4m3(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_e4m3, KOLO_LONG_TWO_STEPS>(c); }
KOLO_KERNEL kolo_cuda_two_step_e5m2(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<kolo_e5m2, KOLO_LONG_TWO_STEPS>(c); }

KOLO_KERNEL kolo_cuda_chain_int32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int32_t, KOLO_LONG_CHAIN>(c); }
KOLO_KERNEL kolo_cuda_chain_uint32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint32_t, KOLO_LONG_CHAIN>(c); }
KOLO_KERNEL kolo_cuda_chain_int64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<int64_t, KOLO_LONG_CHAIN>(c); }
KOLO_KERNEL kolo_cuda_chain_uint64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<uint64_t, KOLO_LONG_CHAIN>(c); }
KOLO_KERNEL kolo_cuda_chain_float32(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<float, KOLO_LONG_CHAIN>(c); }
KOLO_KERNEL kolo_cuda_chain_float64(KOLO_PARAM kolo_cuda_long_args_t c) { kolo_long<double, KOLO_LONG_CHAIN>(c); }

KOLO_KERNEL kolo_cuda_plan_int8(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<int8_t>(a); }
KOLO_KERNEL kolo_cuda_plan_uint8(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<uint8_t>(a); }
KOLO_KERNEL kolo_cuda_plan_int16(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<int16_t>(a); }
KOLO_KERNEL kolo_cuda_plan_uint16(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<uint16_t>(a); }
KOLO_KERNEL kolo_cuda_plan_int32(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<int32_t>(a); }
KOLO_KERNEL kolo_cuda_plan_uint32(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<uint32_t>(a); }
KOLO_KERNEL kolo_cuda_plan_int64(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<int64_t>(a); }
KOLO_KERNEL kolo_cuda_plan_uint64(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<uint64_t>(a); }
KOLO_KERNEL kolo_cuda_plan_float16(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<kolo_half>(a); }
KOLO_KERNEL kolo_cuda_plan_bfloat16(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<kolo_bfloat>(a); }
KOLO_KERNEL kolo_cuda_plan_float32(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<float>(a); }
KOLO_KERNEL kolo_cuda_plan_float64(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<double>(a); }
KOLO_KERNEL kolo_cuda_plan_e4m3(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<kolo_e4m3>(a); }
KOLO_KERNEL kolo_cuda_plan_e5m2(KOLO_PARAM kolo_cuda_plan_args_t a) { kolo_plan_run<kolo_e5m2>(a); }

KOLO_KERNEL kolo_cuda_lift(KOLO_PARAM kolo_cuda_lift_args_t c) { kolo_lift(c); }
KOLO_KERNEL kolo_cuda_products(KOLO_PARAM kolo_cuda_blend_args_t c) { kolo_blend_run(c, false); }
KOLO_KERNEL kolo_cuda_product_sums(KOLO_PARAM kolo_cuda_blend_args_t c) { kolo_blend_sums(c); }
KOLO_KERNEL kolo_cuda_blend(KOLO_PARAM kolo_cuda_blend_args_t c) { kolo_blend_run(c, true); }
KOLO_KERNEL kolo_cuda_messages_few(KOLO_PARAM kolo_cuda_p2p_args_t c) { kolo_messages(c, NULL); }
KOLO_KERNEL kolo_cuda_messages(KOLO_PARAM kolo_cuda_p2p_many_t c) { kolo_messages(c.head, c.more); }
KOLO_KERNEL kolo_cuda_messages_table(KOLO_PARAM kolo_cuda_p2p_args_t c) { kolo_messages_table(c); }
KOLO_KERNEL kolo_cuda_table(KOLO_PARAM kolo_cuda_table_args_t c) { kolo_table(c); }
