PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXAMPLE ?= examples/llama-3-70b-64xh100.json

.PHONY: install run test lint bench validate golden lock

install: $(STAMP)

$(STAMP): requirements-dev.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.lock
	touch $@

run: install
	$(BIN)/python -m app run-example $(EXAMPLE)

test: install
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.service_speed

# Errors on published runs; RUNS=file.jsonl for RunRecords of one's own.
validate: install
	$(BIN)/python -m benchmarks.validate $(RUNS)

# Rewrites the golden predictions and errors, and prints how they changed.
golden: install
	$(BIN)/python -m benchmarks.golden

# Resolves the pinned versions anew; the lock names no registry.
lock: install
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --all-extras --strip-extras --no-header --no-emit-options --generate-hashes --output-file requirements-dev.lock pyproject.toml
	$(BIN)/pip-compile --quiet --extra postgres --extra redis --strip-extras --no-header --no-emit-options --generate-hashes --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
