# make demo: install what is missing, build, train a small model on the King James Bible, show what it writes.
# make test: install what is missing, build, run every test.
BUILD := build
JOBS := $(shell nproc)
CMAKE_FLAGS ?=

all: build

.PHONY: all packages build demo test sanitize format bench clean

packages:
	@scripts/install_packages.sh

configure = cmake -S . -B $(1) -G Ninja -DCMAKE_BUILD_TYPE=Release $(CMAKE_FLAGS) $(2)

build: packages
	@$(call configure,$(BUILD)) > $(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
	@mkdir -p $(BUILD) && mv $(BUILD)-configure.log $(BUILD)/configure.log
	@cmake --build $(BUILD) -j $(JOBS) --target kintsugi

demo: build
	@scripts/demo.sh

test: packages
	@$(call configure,$(BUILD),-DKINTSUGI_TESTS=ON)
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# The tests under the address and undefined-behaviour sanitizers, then under the thread sanitizer.
sanitize: packages
	@for kind in address thread; do \
	  $(call configure,build-$$kind,-DKINTSUGI_SANITIZE=$$kind -DKINTSUGI_TESTS=ON) && cmake --build build-$$kind -j $(JOBS) && \
	  ctest --test-dir build-$$kind --output-on-failure -j $(JOBS) || exit 1; \
	done

bench: packages
	@$(call configure,$(BUILD),-DKINTSUGI_BENCH=ON) && cmake --build $(BUILD) -j $(JOBS)
	@$(BUILD)/bench_step

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	@rm -rf $(BUILD) build-address build-thread
