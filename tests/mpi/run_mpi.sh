#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts one test program under a real mpirun. usage: run_mpi.sh openmpi|mpich RANKS PROGRAM EXPECT [ARGUMENT...]
# with the environment that the ranks get. EXPECT: what their output must have, "all is well". 77: this MPI is not installed.
set -u
mpi=$1 ranks=$2 program=$3
shift 3
command -v "mpirun.$mpi" >/dev/null || { echo "mpirun.$mpi is not installed"; exit 77; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
options=()
if [ "$mpi" = openmpi ]; then
    # As many ranks as we like, as root, too; nothing but shared memory and loopback.
    options=(--allow-run-as-root --oversubscribe --mca btl self,vader,tcp --mca btl_tcp_if_include lo
        --mca btl_vader_single_copy_mechanism none)
fi
timeout -k 5 "${LIMIT_S:-100}" "mpirun.$mpi" "${options[@]}" -n "$ranks" "$program" "$dir/id" "$@" >"$dir/out" 2>&1
status=$?
cat "$dir/out"
[ $status -eq 0 ] && grep -q "${EXPECT:-all is well}" "$dir/out"
