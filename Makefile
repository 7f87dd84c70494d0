# Two commands do everything on a fresh machine: `make pretrain` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3.11
BIN := .venv/bin
UV_VERSION := 0.13.9
# JAX's CPU device uses every core by itself; TensorFlow only tokenises.
export TF_CPP_MIN_LOG_LEVEL ?= 3
export FLYTE_SDK_LOGGING_LEVEL ?= 40

.PHONY: help pretrain check test lint types contracts tests torture format constraints clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The stamp comes last, so an installation that was broken off starts again.
.venv/.installed: constraints.txt pyproject.toml
	@echo "Setting up .venv (once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@touch $@

pretrain: .venv/.installed ## pre-train the demo recipe: real text, a real vocabulary, the whole DAG
	@$(BIN)/pyflyte run workflows/pretrain.py $(ARGS)

CONFIG ?= workflows/configs/demo.yaml

check: .venv/.installed ## what a run will take and whether it can work, without training: make check CONFIG=mine.yaml
	@$(BIN)/python -m t5core.preflight --config $(CONFIG) $(ARGS)

test: lint types contracts tests ## everything that CI runs

lint: .venv/.installed ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed ## static types
	$(BIN)/basedpyright

contracts: .venv/.installed ## who may import whom
	$(BIN)/lint-imports

tests: .venv/.installed ## all tests
	$(BIN)/python -m pytest $(ARGS)

torture: .venv/.installed ## kill a small run 50 times at random moments and compare how each ends
	@$(BIN)/python -m tests.torture $(ARGS)

format: .venv/.installed ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: .venv/.installed ## refresh constraints.txt from what pyproject.toml allows today
	@$(BIN)/uv pip compile --quiet --python $(BIN)/python --all-extras --no-header --no-annotate pyproject.toml \
	  | { echo "# Every package of the environment at the version that the tests passed with. Refresh: make constraints"; cat; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove the environment; runs stay
	rm -rf .venv build *.egg-info
