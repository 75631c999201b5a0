# Two commands for a fresh machine with python3, make and g++: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install -q -c constraints.txt
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find csrc -type f 2>/dev/null)
# oneDNN's AMX kernels die with SIGILL on machines that hide CPUID leaf 0x1D.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo wheels test test-long test-slow test-gpu test-torch test-oldest lint lines format pages site fuzz fuzz-runtime sanitize-runtime mutants wasm fuzz-plan clean

demo: .venv/.product
	rm -rf runs/demo
	$(BIN)/tersify demo --out runs/demo

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

# Whole runs in processes of their own: experiments, several ranks, tutorials. CI runs them behind `make test`.
test-long: .venv/.checks
	$(BIN)/pytest -n 2 --dist worksteal -m long

test-slow: .venv/.checks
	$(BIN)/pytest -m slow

# Wheels for Linux on x86-64 and aarch64, and the sdist, in dist/.
wheels:
	$(PYTHON) tools/wheels.py

# The kernels on a GPU, for machines that have one.
test-gpu: .venv/.checks
	$(BIN)/pytest -m '' tests/runtime/gpu

# The suite with another version of torch, in an environment of its own: make test-torch TORCH=2.11.0
test-torch:
	test -n "$(TORCH)" || { echo "give the version: make test-torch TORCH=2.11.0"; exit 2; }
	test -x build/torch-$(TORCH)/bin/pip || $(PYTHON) -m venv build/torch-$(TORCH)
	build/torch-$(TORCH)/bin/pip install -q torch==$(TORCH) -e '.[test]'
	build/torch-$(TORCH)/bin/python -m pytest

# The oldest torch that pyproject.toml allows. The newest is what constraints.txt names, which `make test` uses.
test-oldest:
	$(MAKE) test-torch TORCH=$$(sed -n 's/.*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml).0

# Random lines without their path, to be found by the names of the files; `make lines SEED=7 ANSWERS=--answers`.
lines: .venv/.checks
	$(BIN)/python tools/lines.py --seed $(or $(SEED),0) $(ANSWERS)

lint: .venv/.checks
	$(BIN)/ruff check .
	$(BIN)/python tools/branches.py --most 0
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.checks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages' tables and pictures, from results/*.json.
pages: .venv/.product
	$(BIN)/python results/pages.py

# The documentation as a site, in build/site; a broken link is an error. After `make wasm` it has the page for browsers, too.
site: .venv/.checks
	$(BIN)/mkdocs build --strict -q

fuzz: .venv/.checks
	$(PIP) cmake ninja nanobind
	tests/hostile/terse_fuzz.sh $(BIN)/python

# Random modules against torch, `make fuzz-runtime N=10000 SEED=7`; a crash or a hang is reported with its seed.
N ?= 2000
SEED ?=
fuzz-runtime: .venv/.checks
	$(BIN)/python tests/runtime/fuzz_runs.py $(N) $(SEED)

# The kernels and the engine under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.
sanitize-runtime: .venv/.checks
	$(PIP) cmake ninja nanobind
	tests/runtime/sanitize_runtime.sh $(BIN)/python

# Hostile plans through the C border under AddressSanitizer and UBSan: `make fuzz-plan N=200000 SEED=0`.
fuzz-plan: .venv/.checks
	cmake -S . -B build/asan -G Ninja -DTERSIFY_LIBRARY=ON -DTERSIFY_SANITIZE=address,undefined
	ninja -C build/asan plan_fuzz
	$(BIN)/python tests/hostile/plan_fuzz.py build/asan/csrc/lib/fuzz/plan_fuzz $(N) $(SEED)

# The module for browsers, in packages/run; needs emscripten.
wasm:
	$(PYTHON) tools/zstd_source.py
	emcmake cmake -S . -B build/wasm -G Ninja -DTERSIFY_LIBRARY=ON -DTERSIFY_ZSTD_SOURCE=$(CURDIR)/build/zstd
	ninja -C build/wasm tersify-wasm

# Small bugs planted one at a time in a copy of the package; it goes on where it stopped.
mutants: .venv/.checks
	$(BIN)/python tools/mutants.py

clean:
	rm -rf .venv build

.venv/.product: $(SOURCES)
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing Tersify and PyTorch into .venv (some minutes the first time)"
	$(PIP) -e .
	touch $@

.venv/.checks: .venv/.product
	$(BIN)/python tools/extras.py test docs > .venv/extras.txt
	$(PIP) -r .venv/extras.txt
	$(PIP) --no-deps timm  # torchvision, which it wants for data alone, has no build for every torch
	touch $@
