# Worldloom. Needs Python 3.11 or newer, make and git; everything else goes into .venv.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
TRAIN_ARGS ?=
BENCH_ARGS ?=
NEWCOMER_ARGS ?=
# Pythons of test-matrix, in environments of their own. Where pyenv has them, it is told which.
MATRIX ?= 3.11 3.12 3.13

BIN := $(VENV)/bin
CODE := src tests examples benchmarks
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Stamps: what they stand for is done again only when pyproject.toml has changed.
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
# Peers of the benchmarks, in environments of their own: benchmarks/peers*.txt.
PEERS := .venv-peers-jax .venv-peers-torch .venv-peers-rejax .venv-peers-serving .venv-peers-arcengine\
  .venv-peers-jaxmarl
# arcengine needs Python 3.12 or newer, which may not be the PYTHON of the others. Where pyenv has it,
# it is told which.
PYTHON_ARCENGINE ?= PYENV_VERSION=3.12 python3.12
# The PyTorch that pyproject.toml pins. On Linux by the label of builds without CUDA, which are a
# tenth of the download: where there is none, pip says so at once and fetches nothing.
TORCH := $(shell sed -n 's/^torch = \["\(torch==[^"]*\)"\].*/\1/p' pyproject.toml)
ifeq ($(shell uname -s),Linux)
TORCH := $(TORCH)+cpu
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo setup test test-slow test-all test-nightly test-matrix newcomer lint docs bench figures peers clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  make PYTHON=python3.12 ... uses another Python'

demo: $(CORE) ## set up what is needed, and train treasure hunt (about a minute)
	$(BIN)/worldloom train treasurehunt $(TRAIN_ARGS)
	@echo 'Open the report in a browser. To leave out $(BIN)/: source $(BIN)/activate'

setup: $(DEV) ## set up everything for development, PyTorch included where it can be had

test: lint ## set up, check, and run the fast tests (six to eight minutes); PYTEST_ARGS chooses some
	$(PYTEST) -m 'not slow and not nightly' $(PYTEST_ARGS)

test-slow: $(DEV) ## only what takes long: MJX, Brax, several processes, browsers, kill tests
	$(PYTEST) -m 'slow and not nightly' $(PYTEST_ARGS)

test-all: test test-slow ## the fast and the slow tests

test-nightly: $(DEV) ## the rest: every algorithm in every world, quick runs of all benchmarks
	$(PYTEST) -m nightly $(PYTEST_ARGS)

test-matrix: ## the fast tests on every Python of MATRIX that is here (a night's work)
	@failed=; for version in $(MATRIX); do \
	  export PYENV_VERSION=$$version; \
	  if ! python$$version -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "python$$version: not found, nothing is tested with it"; continue; \
	  fi; \
	  echo "python$$version:"; \
	  $(MAKE) --no-print-directory test PYTHON=python$$version VENV=.venv-$$version \
	    || failed="$$failed python$$version"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

newcomer: ## from a clean clone, do all that the README and the documentation say (an hour)
	$(PYTHON) tests/newcomer.py $(NEWCOMER_ARGS)

lint: $(DEV) ## style, types and import contracts only
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

docs: $(DEV) ## build the documentation in site/
	$(BIN)/mkdocs build --strict

bench: $(DEV) peers ## measure everything again and write benchmarks/results/ (four hours)
	for suite in algos grid sweep arc robot plant; do $(BIN)/worldloom bench $$suite $(BENCH_ARGS) || exit; done

figures: $(DEV) ## write measured figures into the README and the documentation
	$(BIN)/python -m benchmarks.figures
	$(BIN)/python -m benchmarks.gallery

peers: $(PEERS:=/.stamp) ## set up the peers of the benchmarks in environments of their own

clean: ## remove environments, caches and built pages; runs and results stay
	rm -rf $(VENV) $(MATRIX:%=.venv-%) $(PEERS) site dist .pytest_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache .grimp_cache
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'Python 3.11 or newer is needed: make PYTHON=python3.12 ...'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@$(PIP) '$(TORCH)' 2>/dev/null \
	  || echo 'note: no $(TORCH) for this Python; what needs PyTorch is skipped (or TORCH=...)'
	@touch $@

.venv-peers%/.stamp: benchmarks/peers%.txt
	$(if $(findstring arcengine,$@),$(PYTHON_ARCENGINE),$(PYTHON)) -m venv $(@D)
	@# PyTorch first: d3rlpy asks for any, and pip would fetch the build with CUDA.
	$(if $(findstring torch,$@),$(@D)/bin/python -m pip install --quiet '$(TORCH)')
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@
