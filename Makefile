# Everything a newcomer needs: `make demo`, `make test`. Only Python 3.11+, make and git are assumed.
PYTHON ?= python3
BIN := .venv/bin
PYTEST_ARGS ?= -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench figures peers clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/.made:
	$(PYTHON) -m venv .venv
	@touch $@

# Core dependencies only: no torch, no test tools.
.venv/.core: .venv/.made pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

# The PyTorch baseline is optional: without it its tests skip and say so.
.venv/.dev: .venv/.made pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[torch]' \
	  || echo "note: torch==2.13.0 could not be installed; tests of the PyTorch baseline will skip"
	@touch $@ .venv/.core

demo: .venv/.core ## train treasure hunt and write runs/.../report.html
	$(BIN)/worldloom train treasurehunt

lint: .venv/.dev ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error
	$(BIN)/lint-imports

test: lint ## every check; pytest last
	$(BIN)/python -m pytest $(PYTEST_ARGS)

docs: .venv/.dev ## build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: .venv/.dev ## measure everything anew, on a quiet machine, and fill the figures
	$(BIN)/worldloom bench grid
	$(BIN)/python -m worldloom.bench.figures

figures: .venv/.dev ## fill README and docs from benchmarks/results/*.json
	$(BIN)/python -m worldloom.bench.figures

peers: ## an environment of their own for packages that only benchmarks compare with
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q -r benchmarks/peers.txt

clean: ## remove environments, caches and built pages (runs/ stays)
	rm -rf .venv .venv-peers site .pytest_cache .ruff_cache .hypothesis
