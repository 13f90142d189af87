# make demo: install what is missing, build, train a small model on the King James Bible, show what it writes.
# make test: install what is missing, build, run every test.
BUILD := build
JOBS := $(shell nproc)
CMAKE_FLAGS ?=
# Where a toolkit is found; elsewhere it changes nothing.
CUDA_FLAG := -DKINTSUGI_CUDA=ON

all: build

.PHONY: all packages build demo test sanitize fuzz-layouts fuzz-parsers kill-test mutation-check same-bits bench format clean gpu-build gpu-test gpu-layouts gpu-bench plan-accuracy

packages:
	@scripts/install_packages.sh

# $(call configure,directory,flags)
define configure
@mkdir -p $(1)
@cmake -S . -B $(1) -G Ninja -DCMAKE_BUILD_TYPE=Release $(2) $(CMAKE_FLAGS) > $(1)/configure.log 2>&1 || { cat $(1)/configure.log; exit 1; }
endef

build: packages
	$(call configure,$(BUILD),$(CUDA_FLAG))
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi

# A first look needs no CUDA world on a machine without a GPU: kernels take minutes to compile. A build directory that exists
# keeps what it was configured for.
demo: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt /dev/nvidiactl),,-DKINTSUGI_CUDA=OFF)
demo: build
	@scripts/demo.sh

test: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# The tests under the address and undefined-behaviour sanitizers, then under the thread sanitizer; in one process each, since
# an instrumented one takes a second to start. Tests that limit a process are left out under the latter, and named; so is what
# it finds in Open MPI alone (scripts/thread_sanitizer.supp).
# Open MPI unloads its plugins before leaks are looked for, so that those of plugins have no name to suppress: what runs under
# mpirun is not searched for leaks.
MPIRUN_TESTS := *OnRanks*:RanksAgree*:PlanTune*
sanitize: packages
	$(call configure,build-address,-DKINTSUGI_SANITIZE=address)
	@cmake --build build-address -j $(JOBS)
	@LSAN_OPTIONS="$$LSAN_OPTIONS suppressions=$(CURDIR)/scripts/leak_sanitizer.supp print_suppressions=0" \
	  build-address/kintsugi_tests --gtest_brief=1 --gtest_filter='-$(MPIRUN_TESTS)'
	@ASAN_OPTIONS="$$ASAN_OPTIONS detect_leaks=0" build-address/kintsugi_tests --gtest_brief=1 --gtest_filter='$(MPIRUN_TESTS)'
	$(call configure,build-thread,-DKINTSUGI_SANITIZE=thread)
	@cmake --build build-thread -j $(JOBS)
	@TSAN_OPTIONS="$$TSAN_OPTIONS suppressions=$(CURDIR)/scripts/thread_sanitizer.supp print_suppressions=0" build-thread/kintsugi_tests --gtest_brief=1

# N random layouts against one process; SEED repeats a draw, PRECISION=fp32 has all of them in fp32, CASE='tp=2 …' runs one.
N ?= 200
fuzz-layouts: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DKINTSUGI_CUDA=OFF)
fuzz-layouts: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi_fuzz_layouts
	@$(BUILD)/kintsugi_fuzz_layouts $(N) $(if $(SEED),--seed $(SEED)) $(if $(PRECISION),--precision $(PRECISION)) $(if $(CASE),--case '$(CASE)')

# Damaged files for every parser of files from outside, SECONDS of each, under the address and undefined-behaviour sanitizers;
# SEED repeats the damage, PARSERS="jsonl …" are some.
SECONDS ?= 60
fuzz-parsers: packages
	$(call configure,build-address,-DKINTSUGI_SANITIZE=address)
	@cmake --build build-address -j $(JOBS) --target kintsugi_fuzz_parsers
	@build-address/kintsugi_fuzz_parsers --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(addprefix --only ,$(PARSERS))

# N random kills of runs, among them during saves and removals of checkpoints: each run must end as if undisturbed, bit for bit.
kill-test: N := $(if $(filter command% environment%,$(origin N)),$(N),50)
kill-test: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DKINTSUGI_CUDA=OFF)
kill-test: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi kintsugi_kill_runs
	@$(BUILD)/kintsugi_kill_runs $(N) $(if $(SEED),--seed $(SEED))

# A test of the tests: the bugs of tests/mutations, one after the other, must each be found. ONLY="name …" tries some; PRECISION=fp32 has every
# layout trained in fp32.
mutation-check: packages
	@KINTSUGI_PRECISION=$(PRECISION) scripts/mutate_layouts.sh $(ONLY)

# Whether the commit NEW (HEAD) trains to the same bits as OLD: every *-tiny preset in eight layouts. FAMILIES="gpt2 …" are some.
same-bits: packages
	@scripts/same_bits.sh $(if $(FAMILIES),--families "$(FAMILIES)") $(or $(OLD),$(error say which commit: make same-bits OLD=…)) $(NEW)

bench: packages
	$(call configure,$(BUILD),-DKINTSUGI_BENCH=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target bench_step
	@$(BUILD)/bench_step

# How well the planner predicts published measurements: errors by source.
ROWS ?= ../shared/ground_truth/layouts.csv
MEMORY_ROWS ?= ../shared/ground_truth/memory.csv
plan-accuracy: build
	@$(BUILD)/kintsugi plan --evaluate $(ROWS) --accuracy
	@$(BUILD)/kintsugi plan --evaluate $(MEMORY_ROWS) --accuracy

# On a machine with a GPU and a CUDA toolkit. Packages are not installed there: headers and libraries that it lacks may lie in
# SYSROOT (a folder of unpacked Debian packages).
SYSROOT ?= carry/sysroot
gpu-build:
	$(call configure,build-gpu,-DKINTSUGI_BENCH=ON -DKINTSUGI_WERROR=OFF -DKINTSUGI_CUDA_ARCHITECTURES=90a-real \
	  -DCMAKE_INCLUDE_PATH=$(abspath $(SYSROOT))/usr/include \
	  -DCMAKE_LIBRARY_PATH=$(abspath $(SYSROOT))/usr/lib/x86_64-linux-gnu)
	@cmake --build build-gpu -j $(JOBS)

gpu-test: gpu-build
	@ctest --test-dir build-gpu --output-on-failure -j 4

# Every pair of features on 2 and on 4 ranks with NCCL, which share the GPU where there are not enough.
gpu-layouts: gpu-build
	@for ranks in 2 4; do scripts/share_gpu.sh mpirun -np $$ranks build-gpu/nccl_layouts || exit 1; done

gpu-bench: gpu-build
	@scripts/gpu_bench.sh

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	@rm -rf $(BUILD) build-address build-thread build-gpu build-mutations build-same-bits
