# The few commands of this repository. Everything is installed into .venv; nothing outside this folder is touched but the
# model store (tuili doctor shows where) and pip's own cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native -name '*.cpp' -o -name '*.h') CMakeLists.txt
PY := src tests benchmarks

.PHONY: setup run check test test-all bars build format clean
.DELETE_ON_ERROR:

setup: $(VENV)/.dev  ## virtual environment, editable build, tools

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Tuili needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Say make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml $(NATIVE)
	@echo "Installing Tuili and building its native part into $(VENV) (about two minutes the first time) …"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	$(BIN)/python -m compileall -q src/tuili
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@

$(VENV)/.oracle: $(VENV)/.dev requirements-oracle.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-oracle.txt
	@touch $@

run: $(VENV)/.run  ## the first answer: fetches SmolLM2 (98 MB) if it is not here yet
	$(BIN)/tuili run smollm2 "What is the capital of France? Answer in one sentence." --temperature 0

build: $(VENV)/.run  ## rebuild the native part after a change under native/

check: $(VENV)/.dev  ## format, lint, types, structure, pure tests: under a minute
	$(BIN)/ruff format --check --quiet $(PY)
	$(BIN)/ruff check --quiet $(PY)
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(NATIVE))
	$(BIN)/basedpyright --level error
	$(BIN)/python -m pytest tests/pure

test: $(VENV)/.dev  ## everything that needs no real model beyond SmolLM2 and no torch
	$(BIN)/python -m pytest tests/pure tests/native tests/e2e -m "not real and not slow"

test-all: $(VENV)/.oracle  ## adds the real models and the oracles (transformers on torch)
	PYTHONPATH=tests $(BIN)/python -m support.fetch
	$(BIN)/python -m pytest tests

bars: $(VENV)/.oracle  ## the comparisons with other engines: long, needs a quiet machine
	PYTHONPATH=tests $(BIN)/python -m support.fetch
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/compare_quality.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/compare_llama_cpp.py
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/structured.py

format: $(VENV)/.dev
	$(BIN)/ruff format --quiet $(PY)
	$(BIN)/ruff check --quiet --fix $(PY)
	$(BIN)/clang-format -i $(filter %.cpp %.h,$(NATIVE))

clean:
	rm -rf $(VENV) build src/tuili/_native*.so
