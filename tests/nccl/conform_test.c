/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance of libnccl.so.2: nccl_conform [--processes] [--gpu] [--ranks N]
 * [--hosts N] [--only CASE]. --hosts: processes that take themselves to be on so many hosts.
 */
#include "kit.h"

int main(int argc, char **argv)
{
    return run_cases(argc, argv,
                     (const case_t *const[]){base_cases, life_cases, more_cases, rest_cases, bad_cases, leave_cases,
                                             edge_cases, ends_cases, late_cases, never_cases, cancel_cases,
                                             hold_cases, random_cases, ranks_cases, many_cases, foul_cases, NULL});
}
