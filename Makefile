# Two commands do everything on a fresh machine: `make pretrain` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3.11
BIN := .venv/bin
UV_VERSION := 0.13.9
# JAX's CPU device uses every core by itself; TensorFlow only serves SeqIO's own tasks.
export TF_CPP_MIN_LOG_LEVEL ?= 3
export FLYTE_SDK_LOGGING_LEVEL ?= 40

.PHONY: help pretrain check test lint types contracts tests torture benchmark-data measure-memory benchmark-requirements format constraints clean

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

# Beam asks for other versions than the project runs with, so SeqIO's script gets an environment of its own.
.venv-benchmark/.installed: benchmarks/requirements.txt .venv/.installed
	@test -x .venv-benchmark/bin/python || $(PYTHON) -m venv .venv-benchmark
	@$(BIN)/uv pip sync --quiet --python .venv-benchmark/bin/python benchmarks/requirements.txt
	@touch $@

benchmark-data: .venv-benchmark/.installed ## tokenising against SeqIO's cache script, reading against training
	@$(BIN)/python -m benchmarks.data $(ARGS)

SIZE ?= 2e9

measure-memory: .venv/.installed ## take a text file of SIZE bytes through the data stages and weigh all processes
	@$(BIN)/python -m benchmarks.memory --size $(SIZE)

NOT_FOR_BEAM := beartype|pillow|protobuf|pyarrow|sentencepiece
benchmark-requirements: .venv/.installed ## refresh benchmarks/requirements.txt
	@$(BIN)/uv pip compile --quiet --python $(BIN)/python --no-header --no-annotate \
	  --constraint <(grep -vE '^($(NOT_FOR_BEAM))==' constraints.txt) \
	  --override <(printf 'protobuf<7\npyarrow<26\nsentencepiece<0.2.3\n') pyproject.toml <(echo apache-beam) \
	  | { echo "# SeqIO with Beam, at the versions that the benchmark ran with. Refresh: make benchmark-requirements"; cat; } > requirements.new
	@mv requirements.new benchmarks/requirements.txt

format: .venv/.installed ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: .venv/.installed ## refresh constraints.txt from what pyproject.toml allows today
	@$(BIN)/uv pip compile --quiet --python $(BIN)/python --all-extras --no-header --no-annotate pyproject.toml \
	  | { echo "# Every package of the environment at the version that the tests passed with. Refresh: make constraints"; cat; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove the environment; runs stay
	rm -rf .venv build *.egg-info
