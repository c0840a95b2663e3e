# `make demo` and `make test` do all set-up on a fresh machine; `make help` lists the rest.

PYTHON ?= python3
# more than processors: a test waits while its child processes load, stall and end
JOBS ?= $(shell expr $$(nproc) + 1)

# `make test TORCH=torch==2.15.0` sets up another version of torch in a folder beside .venv.
PINNED_TORCH := torch==2.13.0
TORCH := $(PINNED_TORCH)
VENV := .venv$(if $(filter-out $(PINNED_TORCH),$(TORCH)),-$(subst ==,-,$(TORCH)))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRITON := triton==3.6.0
TRITON_STAMP := $(VENV)/.installed-triton
PIP := $(BIN)/python -m pip

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test quick lint bench conformance docs picture clean toolchain

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: toolchain $(STAMP) ## set up, then run the first example and the comparison
	@echo "examples/01_pow_isinf.py: compiles two kernels, pow and isinf, links them into one super kernel,"
	@echo "launches it once and checks the output."
	$(BIN)/python examples/01_pow_isinf.py
	@echo "examples/03_moe_compare.py: runs a model of six scopes fused and unfused, and shows what that changed."
	$(BIN)/python examples/03_moe_compare.py

# The serial tests come from the files that name the mark: collecting the others takes longer than running these.
test: toolchain lint $(TRITON_STAMP) ## set up, then check format, lint and types, and run the tests
	$(BIN)/pytest -n $(JOBS) --dist worksteal --durations 10 -m "not serial and not conformance"
	$(BIN)/pytest -m "serial and not conformance" $(shell grep -rl --include='test_*.py' 'mark\.serial' tests)

quick: toolchain $(STAMP) $(TRITON_STAMP) ## set up, then run the fast half of the tests (under two minutes on two cores)
	HYPOTHESIS_PROFILE=quick $(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow and not serial and not conformance"

lint: $(STAMP) ## check format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: toolchain $(STAMP) ## measure what a kernel boundary costs
	$(BIN)/superkernel bench boundary

conformance: toolchain $(STAMP) $(TRITON_STAMP) ## run the long conformance sweeps (RESUME=--resume goes on with a stopped run)
	$(BIN)/pytest -n $(JOBS) -m conformance
	HYPOTHESIS_PROFILE=long $(BIN)/pytest -n $(JOBS) tests/targets/cpu/test_run_fuzz.py tests/targets/cpu/test_run_places.py
	$(BIN)/python tests/conformance/run.py --jobs $(JOBS) $(RESUME)

docs: $(STAMP) ## rewrite the generated pages under docs/
	$(BIN)/python tools/write_docs.py
	$(BIN)/python tools/write_benchmarks.py

picture: toolchain $(STAMP) ## draw docs/fusion.svg, the picture of the README, from calls on this machine
	$(BIN)/python tools/write_picture.py

clean: ## remove caches and build products (.venv stays)
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path "./.venv*" -prune -o -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

toolchain:
	@missing=; \
	for tool in g++ ld objcopy; do \
		command -v $$tool > /dev/null || missing="$$missing $$tool"; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "Missing:$$missing. SuperKernel compiles and links with the GNU tools. Install them first, for example:" >&2; \
		echo "    sudo apt-get install g++ binutils        (Debian, Ubuntu)" >&2; \
		echo "    sudo dnf install gcc-c++ binutils        (Fedora, RHEL)" >&2; \
		exit 1; \
	fi

# torch is unpacked beside everything else, which takes as long, and exactly pinned: the range in pyproject.toml finds it
# and chooses no other build. The last call installs what torch needs. Modules are compiled when they are first imported:
# most of them never are.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than Python 3.11; name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV) || \
		{ echo "Could not create $(VENV); on Debian and Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV); the first time takes a few minutes."
	$(PIP) install --quiet "setuptools>=77"
	$(PIP) install --quiet --no-compile --no-deps $(TORCH) & torch=$$!; \
	$(PIP) install --quiet --no-compile --no-build-isolation --constraint constraints.txt --editable ".[dev]"; rest=$$?; \
	wait $$torch && exit $$rest
	$(PIP) install --quiet --no-compile --no-build-isolation --constraint constraints.txt --editable ".[torch,dev]"
	@touch $@

# The tests of the cuda target compile kernels with Triton, which runs without a GPU. A torch for CUDA brings its own.
$(TRITON_STAMP): $(STAMP)
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("triton") is None)' || \
		$(PIP) install --quiet --no-compile --no-deps $(TRITON)
	@touch $@
