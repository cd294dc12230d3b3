# SPDX-License-Identifier: Apache-2.0
#
# A thin coat over Meson for people: each target installs the Debian packages it misses, then calls one command.
# BUILD= another build folder, PREFIX= where `make install` goes, J= jobs; GPU_ARCHS=80,90 when a build folder is set up:
# the architectures that kernels are compiled for (`make nccl`: those of the GPUs here, if there are any).
BUILD ?= build
PREFIX ?= /usr/local
J ?= $(shell nproc)
N ?= 4
KOLORUN = $(BUILD)/tools/kolorun
PERF = $(BUILD)/tools/kolo-perf

.PHONY: all deps nccl look-again run check-run elastic digits param-server test test-all test-vm test-gpu bench-gpu tidy chaos chaos-points kills programs property bench bench-engine \
        bench-peers bench-rendezvous install uninstall help format fuzz clean

all: $(BUILD)/build.ninja
	ninja -C $(BUILD) -j $(J)

$(BUILD)/build.ninja: | deps
	meson setup $(BUILD) --prefix=$(PREFIX) $(if $(GPU_ARCHS),-Dgpu_archs=$(GPU_ARCHS))

# The folder remembers what was missing when it was set up (tests, peers); what came since is found by looking again.
look-again: $(BUILD)/build.ninja
	@meson setup --reconfigure $(BUILD) >/dev/null || { cat $(BUILD)/meson-logs/meson-log.txt; exit 1; }

# Only what a target runs, a third of all: tests and benchmarks are not built.
build-only = $(MAKE) --no-print-directory $(BUILD)/build.ninja && ninja -C $(BUILD) -j $(J) tools/kolorun $(1)

deps:
	@scripts/install-deps build

# For programs that use NCCL (docs/nccl.md): libnccl.so.2, and the tools to start them and to look at them. nvcc takes minutes
# for each architecture; it uses all cores, and a folder that is set up here gets kernels for the GPUs that are here.
nccl: export GPU_ARCHS ?= $(shell scripts/gpu-archs)
nccl: export NVCC_APPEND_FLAGS ?= --split-compile 0
nccl:
	@test -e $(BUILD)/build.ninja || test -z "$(GPU_ARCHS)" || \
	    echo 'kernels for the GPUs here ($(GPU_ARCHS)); for others, too: make nccl BUILD=another GPU_ARCHS=80,90,100'
	@$(call build-only,libnccl.so.2 tools/kolo-top)
	@test -e $(BUILD)/src/gpu/cuda/kernels.fatbin || \
	    echo 'this libnccl.so.2 has no kernels, and moves what is on GPUs through host memory: install nvcc (CUDA) if it is not here, then make nccl BUILD=another'
	@echo 'LD_PRELOAD=$(abspath $(BUILD))/libnccl.so.2 before the command, or $(abspath $(KOLORUN)) -n 1 --as-nccl COMMAND'

# The main job: training on real data with N workers that loses one half way and gets another. OUT= the folder for
# picture and timeline; more by ARGS=, see examples/digits/README.md: make run ARGS="--kill 0@100 --stop 1@800"
OUT ?= $(BUILD)
run:
	@$(call build-only,examples/digits/digits)
	$(BUILD)/examples/digits/digits --workers $(N) --out $(OUT) $(ARGS)

# The collectives alone: N local ranks check every one on real buffers and print the performance table.
check-run:
	@$(call build-only,tools/kolo-perf)
	$(KOLORUN) -n $(N) $(PERF) run

# A service whose workers are killed, stopped and cut off while it runs: make elastic ARGS="--seconds 60 --seed 7"
elastic:
	@$(call build-only,examples/elastic/elastic)
	$(BUILD)/examples/elastic/elastic $(ARGS)

digits: run

# The digits' model held by two servers, trained by three workers through keyed tensors; then again with a server killed
# half way and started anew. The last line compares the two.
param-server:
	@$(call build-only,examples/param-server/param-server)
	$(BUILD)/examples/param-server/param-server --out $(OUT) $(ARGS)

# What every change must pass: builds (release, sanitizers, clang), checks, and the tests that are steady everywhere.
# Last line: N passed, N failed. More by ARGS=, see scripts/run-tests --help.
test:
	@scripts/install-deps build test
	@$(MAKE) --no-print-directory look-again
	@scripts/run-tests $(ARGS)

# The package kolocomm alone: builds it in an environment of its own and runs its tests.
.PHONY: python
python:
	@scripts/install-deps build test
	@$(MAKE) --no-print-directory look-again
	@ninja -C $(BUILD) -j $(J) kolocomm tools/kolorun
	@meson test -C $(BUILD) --no-rebuild --suite python --print-errorlogs

# A wheel with its libraries inside, installed into an empty environment and run there by four ranks. PYTHON names the python3.
.PHONY: wheel
wheel:
	@scripts/make-wheel --try $(or $(PYTHON),python3)

# torch.distributed on Kolo: torch comes from PyPI (4.5 GB with its needs) into a cache outside the tree, once; skipped, which is
# said, where it cannot be had. Last line: N passed, N failed.
.PHONY: test-python
test-python:
	@scripts/install-deps build test
	@$(MAKE) --no-print-directory look-again
	@ninja -C $(BUILD) -j $(J) tools/kolorun libnccl.so.2 kolocomm || echo 'the package kolocomm is not built here'
	@scripts/test-python $(BUILD) $(ARGS)

# What needs RDMA, or settings of a kernel of its own, in virtual machines with RoCE devices (tests/vm). Last line: N passed, N failed.
test-vm:
	@scripts/install-deps build test vm
	@$(MAKE) --no-print-directory look-again
	@$(MAKE) --no-print-directory all
	@tests/vm/all $(BUILD) $(ARGS)

# What needs GPUs: conformance, random programs, faults on real ones. GPUS= how many. Last line of each: N passed, N failed.
GPUS ?= 2
GPU_CONFORM = $(BUILD)/tests/gpu/gpu_conform --devices $(GPUS)
GPU_PARTS = --clients --faults --places --windows '--programs 1000'
GPU_POISON = KOLO_COUNTER_START=-100000 KOLO_GPU_POISON=165
test-gpu: all
	$(GPU_CONFORM) --ranks $(GPUS)
	$(GPU_CONFORM) --ranks $(GPUS) --processes
	$(GPU_CONFORM) --ranks $(GPUS) --one-thread
	$(GPU_CONFORM) --ranks 4 --quick
	for part in $(GPU_PARTS); do for how in '' --processes; do $(GPU_CONFORM) --ranks $(GPUS) --quick $$part $$how || exit 1; done; done
	$(GPU_CONFORM) --ranks $(GPUS) --quick --clients --one-thread
	KOLO_GPU_EXECUTOR=staged $(GPU_CONFORM) --ranks $(GPUS) --quick --clients
	$(GPU_CONFORM) --ranks $(GPUS) --quick --vmm --processes
	$(BUILD)/tests/nccl/nccl_conform --gpu --ranks $(GPUS)
	$(BUILD)/tests/nccl/nccl_conform --gpu --ranks $(GPUS) --processes
	$(BUILD)/tests/gpu/gpu_keyed
	$(KOLORUN) -n $(GPUS) $(BUILD)/tests/gpu/gpu_engine
	@if python3 -c 'import torch'; then python3 tests/gpu/torch_test.py $(BUILD)/libkolo.so; else echo "torch is not there: its tensors were not tried"; fi
	$(GPU_CONFORM) --ranks $(GPUS) --stress 30
	$(GPU_POISON) $(GPU_CONFORM) --ranks $(GPUS) --soak 1000000
	$(GPU_POISON) $(GPU_CONFORM) --ranks $(GPUS) --processes --soak 10000000 --graph

# Kolo against NCCL on the same GPUs: ARGS="all_reduce --max 8G --graph --nccl /path/libnccl.so.2"
bench-gpu: all
	$(BUILD)/bench/peers-gpu --gpus $(GPUS) $(ARGS)

# Everything, for the night: other launchers, ssh, random faults, real time limits, large sweeps, fuzzing.
test-all:
	@scripts/install-deps build test night
	@$(MAKE) --no-print-directory look-again
	@scripts/run-tests --all $(ARGS)

# clang-tidy over all sources; `make test` looks at those that changed since scripts/tidy-stamp, which this moves.
tidy:
	@scripts/install-deps build test
	@scripts/run-tests --only clang
	@scripts/check-tidy --all

# Random programs, one random fault each, RUNS times from SEED on (default: from the clock), JOBS side by side; the last
# line sums up. NET=1: on namespaces, with links that are cut. chaos-points: every fail point with every fault TIMES
# times, the table goes to bench/results. More by ARGS=, see tests/chaos/chaos --help.
CHAOS = $(BUILD)/tests/chaos/chaos
CHAOS_ARGS = --jobs $(JOBS) $(if $(SEED),--seed $(SEED)) $(ARGS)
JOBS ?= 1
TIMES ?= 10
chaos: look-again all
	@$(CHAOS) --runs $(or $(RUNS),1000) $(if $(NET),--net) $(CHAOS_ARGS)

# Kills while large copies run, RUNS of them (500 is a good number): make kills RUNS=500 SEED=1
kills: look-again all
	$(BUILD)/tests/comm/comm_kills_test $(or $(RUNS),4) $(SEED)

# Random programs with one odd call, RUNS of them on each wire: all are told who is odd within two seconds: make mismatches RUNS=1000 SEED=1
.PHONY: mismatches
mismatches: look-again all
	for wire in cma shm tcp hosts; do $(BUILD)/tests/mismatch/mismatch_random_test $(or $(RUNS),4) $(or $(SEED),1) 2000 $$wire || exit 1; done

chaos-points: look-again all
	@$(CHAOS) --points $(TIMES) --out bench/results/chaos-points.txt $(CHAOS_ARGS)

# Random programs for the engine against a sequential reference, RUNS of each kind from SEED on: ranks as threads (on
# devices, with autotune, see the test), process sets that overlap, agreed on through a tree, and in levels over
# hosts. What fails prints its seed; SEED=that RUNS=1 repeats it.
RANDOM = $(BUILD)/tests/engine/engine_random_test
RANDOM_SETS = $(BUILD)/tests/engine/engine_sets_random_test
property: RUNS ?= 1000
property: SEED ?= 1
property: look-again all
	$(RANDOM) threads $(RUNS) $(SEED)
	KOLO_ENGINE_TREE_RANKS=1 KOLO_ENGINE_TREE_FAN_IN=2 $(RANDOM) threads $(RUNS) $(SEED)
	$(RANDOM) hosts $(RUNS) $(SEED)
	$(RANDOM_SETS) $(RUNS) $(SEED)
	KOLO_ENGINE_TREE_RANKS=1 KOLO_ENGINE_TREE_FAN_IN=2 $(RANDOM_SETS) $(RUNS) $(SEED)

# Random programs on kolo.h, RUNS on each wire from SEED on: groups cut differently on each rank, several communicators
# and streams, against a scalar reference. What fails prints its seed.
PROGRAMS = $(BUILD)/tests/programs/comm_programs
programs: RUNS ?= 1000
programs: SEED ?= 1
programs: look-again all
	$(PROGRAMS) $(RUNS) $(SEED)
	KOLO_LOCAL_DISABLE=1 $(PROGRAMS) $(RUNS) $(SEED)
	KOLO_LOCAL_DISABLE=1 KOLO_CMA_DISABLE=1 $(PROGRAMS) $(RUNS) $(SEED)
	KOLO_LOCAL_DISABLE=1 KOLO_CMA_DISABLE=1 KOLO_SHM_DISABLE=1 $(PROGRAMS) $(RUNS) $(SEED)

# Keyed tensors with random faults, RUNS of them from SEED on: aborts, restarts, cut connections, receivers that go.
# What fails prints its seed; SEED=that RUNS=1 repeats it.
.PHONY: tensors
tensors: SEED ?= 1
tensors: look-again all
	$(BUILD)/tests/rendezvous/rendezvous_random $(or $(RUNS),2000) $(SEED)

bench: all
	$(KOLORUN) -n $(N) $(PERF) all_reduce --min 8 --max 64M

# What the engine costs and carries with 4 local ranks; its last line is one for machines.
bench-engine: all
	$(KOLORUN) -n $(N) $(BUILD)/bench/bench-engine

bench-peers:
	@scripts/install-deps build bench
	@$(MAKE) --no-print-directory look-again
	@$(MAKE) --no-print-directory all
	bench/run_peers --build $(BUILD)

# This build against an older one, whose build folder is OLDER.
.PHONY: bench-older
bench-older: all
	bench/run_older $(OLDER) --build $(BUILD) $(ARGS)

# Keyed tensors against gRPC's streams; last lines: ratio rendezvous wire=... peer=... bytes=... ratio=...
bench-rendezvous:
	@scripts/install-deps build bench
	@$(MAKE) --no-print-directory look-again
	@$(MAKE) --no-print-directory all
	bench/run_rendezvous --build $(BUILD) $(ARGS)

# Verbs against perftest and Open MPI in a virtual machine; lines: ratio OP peer=... bytes=... ratio=..., count ...
.PHONY: bench-rdma
bench-rdma:
	@scripts/install-deps build bench vm
	@$(MAKE) --no-print-directory look-again
	@$(MAKE) --no-print-directory all
	bench/run_rdma --build $(BUILD) $(ARGS)

# A PREFIX that is named counts for a folder that is set up already, too. The loader learns of the library by ldconfig.
install: $(BUILD)/build.ninja
	$(if $(filter file,$(origin PREFIX)),,meson configure $(BUILD) -Dprefix=$(PREFIX))
	@$(MAKE) --no-print-directory all
	meson install -C $(BUILD) --no-rebuild
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi
	@meson introspect --buildoptions $(BUILD) | python3 -c 'import json, sys; \
	o = {r["name"]: r["value"] for r in json.load(sys.stdin)}; p = o["prefix"]; l = p + "/" + o["libdir"]; \
	print("\nTo use it from this shell:\n  export PATH=" + p + "/bin:$$PATH\n  export LD_LIBRARY_PATH=" + l \
	+ "$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} PKG_CONFIG_PATH=" + l + "/pkgconfig$${PKG_CONFIG_PATH:+:$$PKG_CONFIG_PATH}")'

# What the last `make install` of this build folder put in place.
uninstall:
	ninja -C $(BUILD) uninstall

help:
	@echo 'make               builds into $(BUILD)/'
	@echo 'make nccl          libnccl.so.2, on which PyTorch, JAX and others run unmodified (docs/nccl.md)'
	@echo 'make run           trains a model with $(N) workers, one of which is killed half way'
	@echo 'make check-run     $(N) ranks check every collective and print its times'
	@echo 'make elastic       a service whose workers are killed, stopped and cut off while it runs'
	@echo 'make param-server  the same model by keyed tensors; a server is killed and started anew'
	@echo 'make test          checks and tests, minutes; make test-all: everything'
	@echo 'make python        builds the Python package and runs its tests; pip install . installs it'
	@echo 'make wheel         a wheel of the Python package with its libraries inside, tried in an empty environment'
	@echo 'make bench         times all_reduce; bench-engine, bench-peers (other libraries), bench-rdma'
	@echo 'make install       into PREFIX=$(PREFIX); make uninstall takes it back'
	@echo 'make format        lays out the C files; make clean removes the build folders'
	@echo 'N= ranks, RUNS= runs of what is drawn at random (make chaos, kills, mismatches, property, programs, tensors),'
	@echo 'BUILD= folder, PREFIX= where to, J= jobs; see README.md and CONTRIBUTING.md'

format:
	@scripts/install-deps build test
	git ls-files -co --exclude-standard '*.c' '*.h' | xargs -r clang-format -i

# Longer fuzzing: make fuzz SECONDS=600
SECONDS ?= 60
fuzz:
	@scripts/install-deps build test night
	scripts/run-tests --only fuzz --fuzz-seconds $(SECONDS)

clean:
	rm -rf build build-python build-asan build-tsan build-clang build-fuzz
