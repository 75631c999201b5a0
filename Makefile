# Two commands for a fresh machine with python3, make and g++: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install -q -c constraints.txt
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find csrc -type f 2>/dev/null)
# oneDNN's AMX kernels die with SIGILL on machines that hide CPUID leaf 0x1D.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow lint format readme fuzz mutants clean

demo: .venv/.product
	rm -rf runs/demo
	$(BIN)/tersify demo --out runs/demo

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: .venv/.checks
	$(BIN)/pytest -m slow

lint: .venv/.checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.checks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The README's tables and picture and the papers' figures, from results/*.json.
readme: .venv/.product
	$(BIN)/python results/tables.py
	$(BIN)/python results/figures.py

fuzz: .venv/.checks
	$(PIP) cmake ninja nanobind
	tests/hostile/terse_fuzz.sh $(BIN)/python

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
	$(PIP) -e '.[test]'
	touch $@
