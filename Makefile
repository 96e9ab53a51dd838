PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
STAMP := $(VENV)/.installed
EXAMPLE ?= examples/llama-3-70b-64xh100.json

.PHONY: install frameworks run test lint bench validate golden lock lock-frameworks

install: $(STAMP)

$(STAMP): requirements-dev.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.lock
	touch $@

# The frameworks that launch files are written for, on a CPU: the tests feed their parsers. About 2.8 GB.
frameworks: $(FRAMEWORKS)/.installed

$(FRAMEWORKS)/.installed: requirements-frameworks.lock
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-frameworks.lock
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

lock-frameworks: install
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --allow-unsafe --strip-extras --no-header --no-emit-options --generate-hashes --output-file requirements-frameworks.lock .ci/frameworks.in
