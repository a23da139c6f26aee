# The front door. Everything here is a short name for cmake presets (CMakePresets.json) and scripts.

# The preset that `make build` and `make demo` use; `make test` has its own, with assertions.
PRESET ?= release
TEST_PRESET ?= dev

# One compile job takes up to 2 GiB, so memory bounds the jobs as well as cores do.
CORES := $(shell nproc 2>/dev/null || echo 1)
MEMORY_JOBS := $(shell cat /proc/meminfo /sys/fs/cgroup/memory.max 2>/dev/null | awk ' \
  /^MemTotal:/ {kib = $$2} /^[0-9]+$$/ {if ($$1 / 1024 < kib) kib = $$1 / 1024} \
  END {jobs = int(kib / (2 * 1024 * 1024)); print jobs < 1 ? 1 : jobs}')
JOBS ?= $(shell echo $$(( $(CORES) < $(MEMORY_JOBS) ? $(CORES) : $(MEMORY_JOBS) )))
TEST_JOBS ?= 2

# Debian 12's clang 14 cannot parse libtorch's headers as C++20, so by default only the rooms that know no torch are
# checked. With a clang that can: make tidy CLANG_TIDY=clang-tidy-NN TIDY_SOURCES='src/*.cpp apps/*.cpp'
CLANG_TIDY ?= clang-tidy
TIDY_SOURCES ?= $(foreach room,base geometry graph models plan schedule,src/tessera/$(room)/*.cpp)

# make fuzz-plans: how many random plans, which ones, and ranks as processes where MPIRUN is given.
N ?= 1000
SEED ?= 1
MPIRUN ?=

DEMO_FLAGS ?= --model resnet_v1 --depth 20 --image-size 64 --batch-size 16 --num-classes 10 --steps 60 --lr 0.01

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp')

.DEFAULT_GOAL := help
.PHONY: help deps build demo test sanitize fuzz-plans bench format tidy clean

help:
	@echo "make demo        build, then train a small network on made-up images for a minute"
	@echo "make build       build build/$(PRESET)/tessera"
	@echo "make test        build and run all tests"
	@echo "make sanitize    all tests with the sanitizers of addresses and undefined behaviour, then of data races"
	@echo "make fuzz-plans  draw N=$(N) random plans of SEED=$(SEED) and verify each; MPIRUN=mpirun: ranks as processes"
	@echo "make bench       build the benchmarks and list them"
	@echo "make format      format all sources with clang-format"
	@echo "make tidy        check the sources with clang-tidy"
	@echo "make clean       remove build/"
	@echo
	@echo "Variables: PRESET=$(PRESET) (see cmake --list-presets), TEST_PRESET=$(TEST_PRESET), JOBS=$(JOBS), DEMO_FLAGS"

deps:
	@scripts/install-deps

build: deps
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) --parallel $(JOBS) --target tessera

demo: build
	build/$(PRESET)/tessera train $(DEMO_FLAGS)

test: deps
	cmake --preset $(TEST_PRESET)
	cmake --build --preset $(TEST_PRESET) --parallel $(JOBS)
	ctest --preset $(TEST_PRESET) --parallel $(TEST_JOBS)

sanitize: deps
	set -e; for preset in asan tsan; do \
	  cmake --preset $$preset; \
	  cmake --build --preset $$preset --parallel $(JOBS); \
	  ctest --preset $$preset --parallel $(TEST_JOBS); \
	done

fuzz-plans: deps
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) --parallel $(JOBS) --target random_plans
	OMP_NUM_THREADS=1 build/$(PRESET)/tests/plans/random_plans fuzz $(N) $(SEED) $(if $(MPIRUN),--mpirun $(MPIRUN))

# Benchmarks are programs of their own; each one says with --help what it measures.
bench: deps
	cmake --preset $(PRESET) -DTESSERA_BENCH=ON
	cmake --build --preset $(PRESET) --parallel $(JOBS) --target benchmarks tessera
	@echo "benchmarks:"
	@find build/$(PRESET)/bench -maxdepth 1 -type f -perm -u+x 2>/dev/null | sort | sed 's/^/  /'

format:
	@scripts/install-deps --format
	clang-format -i $(SOURCES)

tidy:
	@scripts/install-deps --format
	cmake --preset $(TEST_PRESET)
	git ls-files --cached --others --exclude-standard $(foreach pattern,$(TIDY_SOURCES),'$(pattern)') \
	  | xargs -P $(JOBS) -n 1 $(CLANG_TIDY) -p build/$(TEST_PRESET) --quiet

clean:
	rm -rf build
