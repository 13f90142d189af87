# make demo:    install missing packages, build, train a small model on the King James Bible, show what it writes.
# make test:    install missing packages, build, run all tests.
# make build:   install missing packages, build the program. Without apt, CMake names what it does not find.
# make install: build, then install to PREFIX (/usr/local) below DESTDIR.
# make hostile: attack the program: outputs over inputs, links, two commands on one directory, ranks that see different files.
BUILD := build
JOBS := $(shell nproc)
CMAKE_FLAGS ?=
# Used where a CUDA toolkit is found.
CUDA_FLAG := -DKINTSUGI_CUDA=ON

PREFIX ?= /usr/local
# Looked up when it is used: the packages may have just been installed. An existing build directory keeps its generator.
GENERATOR = $(if $(shell command -v ninja),-G Ninja)

all: build

.PHONY: all packages build install demo test sanitize sanitize-kernels fuzz-layouts fuzz-parsers kill-test fault-test hostile mutation-check kernel-mutation-check same-bits bench format clean gpu-build gpu-test gpu-layouts gpu-bench plan-accuracy

# What is installed depends on what is built (cmake/dependencies.txt).
KINDS := required optional tool
packages:
	@scripts/install_packages.sh $(KINDS)
	$(if $(filter test,$(KINDS)),@scripts/install_duckdb.sh $(BUILD)/duckdb)
demo: KINDS += demo
test sanitize sanitize-kernels fuzz-layouts fuzz-parsers kill-test fault-test hostile mutation-check kernel-mutation-check same-bits: KINDS += test demo
test fault-test: KINDS += cluster
test: KINDS += browser hip

# $(call configure,directory,flags)
define configure
@mkdir -p $(1)
@[ ! -e $(BUILD)/duckdb ] || [ -e $(1)/duckdb ] || ln -s $(abspath $(BUILD)/duckdb) $(1)/duckdb
@cmake -S . -B $(1) $(if $(wildcard $(1)/CMakeCache.txt),,$(GENERATOR)) -DCMAKE_BUILD_TYPE=Release $(2) $(CMAKE_FLAGS) > $(1)/configure.log 2>&1 || { cat $(1)/configure.log; exit 1; }
endef

build: packages
	$(call configure,$(BUILD),$(CUDA_FLAG))
	@cat $(BUILD)/features.txt
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi

install: build
	@cmake --build $(BUILD) --target reference
	@cmake --install $(BUILD) --prefix $(PREFIX)

# The CUDA kernels take minutes to compile, so the demo leaves them out on a machine without a GPU. An existing build directory
# keeps its configuration.
demo: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt /dev/nvidiactl),,-DKINTSUGI_CUDA=OFF)
demo: build
	@scripts/demo.sh

test: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# The tests with the address and undefined-behaviour sanitizers, then those of folders with threads with the thread sanitizer
# (tests/sanitizers/ lists what is left out). Those of tests/parallel have no threads but the test's own, which are its ranks.
# FILTER='Suite.*' runs only these tests.
THREADED := comm|core|data|energy|http|serve|train
sanitize: packages
	$(call configure,build-asan,-DKINTSUGI_SANITIZE=address -DKINTSUGI_TESTS=ON)
	@cmake --build build-asan -j $(JOBS) --target kintsugi kintsugi_tests
	@FILTER='$(FILTER)' scripts/sanitize.sh build-asan address $(JOBS)
	$(call configure,build-tsan,-DKINTSUGI_SANITIZE=thread -DKINTSUGI_TESTS=ON -DKINTSUGI_TEST_FILTER='^tests/($(THREADED))/')
	@cmake --build build-tsan -j $(JOBS) --target kintsugi kintsugi_tests
	@FILTER='$(FILTER)' scripts/sanitize.sh build-tsan thread $(JOBS)

# The operation tests on emulated GPUs of both widths: with the address and undefined-behaviour sanitizers, then with kernels
# whose races are looked for. FILTER='*Attention*' runs only these tests.
EMULATED := kintsugi_emulated_tests_32 kintsugi_emulated_tests_64
sanitize-kernels: packages
	$(call configure,build-asan,-DKINTSUGI_SANITIZE=address -DKINTSUGI_TESTS=ON)
	@cmake --build build-asan -j $(JOBS) --target $(EMULATED)
	@for program in $(EMULATED); do FILTER='$(FILTER)' scripts/sanitize.sh build-asan address $(JOBS) $$program || exit 1; done
	$(call configure,build-races,-DKINTSUGI_RACE_CHECK=ON -DKINTSUGI_TESTS=ON -DKINTSUGI_CUDA=OFF)
	@cmake --build build-races -j $(JOBS) --target $(EMULATED)
	@for program in $(EMULATED); do FILTER='$(FILTER)' scripts/sanitize.sh build-races races $(JOBS) $$program || exit 1; done

# Compares N random layouts with one process. SEED repeats a draw, PRECISION=fp32 uses fp32 for all, CASE='tp=2 …' runs one.
N ?= 200
fuzz-layouts: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DKINTSUGI_CUDA=OFF)
fuzz-layouts: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi_fuzz_layouts
	@$(BUILD)/kintsugi_fuzz_layouts $(N) $(if $(SEED),--seed $(SEED)) $(if $(PRECISION),--precision $(PRECISION)) $(if $(CASE),--case '$(CASE)')

# Feeds damaged files to every parser for SECONDS each, with the address and undefined-behaviour sanitizers. SEED repeats the
# damage, PARSERS="jsonl …" selects parsers.
SECONDS ?= 60
fuzz-parsers: packages
	$(call configure,build-asan,-DKINTSUGI_SANITIZE=address -DKINTSUGI_TESTS=ON)
	@cmake --build build-asan -j $(JOBS) --target kintsugi_fuzz_parsers
	@build-asan/kintsugi_fuzz_parsers --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(addprefix --only ,$(PARSERS))

# Kills runs N times at random moments, also while checkpoints are saved and removed, and data commands as often. Each must end with
# the same bits as an undisturbed one. ONLY='data dedup' selects commands by their names.
kill-test: N := $(if $(filter command% environment%,$(origin N)),$(N),50)
kill-test: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DKINTSUGI_CUDA=OFF)
kill-test: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi kintsugi_kill_runs
	@$(BUILD)/kintsugi_kill_runs $(N) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)')

# Disturbs N runs under mpirun and under a Slurm cluster on this machine: killed and stopped ranks, dead nodes, a killed
# supervisor, a full disk, damaged checkpoints, requeues. Each run must finish by itself with the weights of an undisturbed one.
fault-test: N := $(if $(filter command% environment%,$(origin N)),$(N),50)
fault-test: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DKINTSUGI_CUDA=OFF)
fault-test: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi kintsugi_fault_runs
	@$(BUILD)/kintsugi_fault_runs $(N) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)')

# Attacks the program N times: outputs over inputs and links, links in run directories, two commands on one directory, ranks that
# see different files. Inputs must stay as they are, and no mixture of them may be trained. SEED repeats the draw, ONLY='train and'
# selects attacks by their names.
hostile: N := $(if $(filter command% environment%,$(origin N)),$(N),100)
hostile: CUDA_FLAG := $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DKINTSUGI_CUDA=OFF)
hostile: packages
	$(call configure,$(BUILD),$(CUDA_FLAG) -DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi kintsugi_hostile_runs
	@$(BUILD)/kintsugi_hostile_runs $(N) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)')

# Applies each bug of tests/mutations in turn; the tests must find it. ONLY="name …" selects some, PRECISION=fp32 trains every
# layout in fp32.
mutation-check: packages
	@KINTSUGI_PRECISION=$(PRECISION) scripts/mutate.sh layouts $(ONLY)

# Likewise for bugs in kernels (tests/mutations/kernels), on an emulated GPU that looks for races.
kernel-mutation-check: packages
	@scripts/mutate.sh kernels $(ONLY)

# Checks that the commit NEW (HEAD) trains to the same bits as OLD: every *-tiny preset in eight layouts. FAMILIES="gpt2 …" selects
# some.
same-bits: packages
	@scripts/same_bits.sh $(if $(FAMILIES),--families "$(FAMILIES)") $(or $(OLD),$(error say which commit: make same-bits OLD=…)) $(NEW)

bench: packages
	$(call configure,$(BUILD),-DKINTSUGI_BENCH=ON)
	@cmake --build $(BUILD) -j $(JOBS) --target bench_step
	@$(BUILD)/bench_step

# Compares the planner with published measurements: errors by source.
ROWS ?= bench/published/layouts.csv
MEMORY_ROWS ?= bench/published/memory.csv
plan-accuracy: packages
	$(call configure,$(BUILD),$(CUDA_FLAG))
	@cmake --build $(BUILD) -j $(JOBS) --target plan_accuracy
	@$(BUILD)/plan_accuracy $(ROWS) --accuracy
	@$(BUILD)/plan_accuracy $(MEMORY_ROWS) --accuracy

# For a machine with a GPU and a CUDA toolkit. No packages are installed there: missing headers and libraries can be in SYSROOT,
# a directory of unpacked Debian packages.
SYSROOT ?= carry/sysroot
gpu-build:
	$(call configure,build-gpu,-DKINTSUGI_CUDA=REQUIRED -DKINTSUGI_TESTS=ON -DKINTSUGI_BENCH=ON -DKINTSUGI_CUDA_ARCHITECTURES=90a-real \
	  -DCMAKE_INCLUDE_PATH=$(abspath $(SYSROOT))/usr/include \
	  -DCMAKE_LIBRARY_PATH=$(abspath $(SYSROOT))/usr/lib/x86_64-linux-gnu)
	@cat build-gpu/features.txt
	@cmake --build build-gpu -j $(JOBS)

gpu-test: gpu-build
	@ctest --test-dir build-gpu --output-on-failure -j 4

# Every pair of features on 2 and 4 ranks with NCCL. The ranks share a GPU if there are too few.
gpu-layouts: gpu-build
	@for ranks in 2 4; do scripts/share_gpu.sh mpirun -np $$ranks build-gpu/nccl_layouts || exit 1; done

gpu-bench: gpu-build
	@scripts/gpu_bench.sh

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	@rm -rf $(BUILD) build-asan build-tsan build-gpu build-mutations build-same-bits
