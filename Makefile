# Two commands do all the set-up on a fresh machine: `make run` and `make test`. Both need Python 3.11+, pip and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := native/CMakeLists.txt $(wildcard native/src/* native/tier/*)

.PHONY: run test lint soak test-clients clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $(VENV)/.run $@

run: $(VENV)/.run  ## Text from the built-in model.
	$(BIN)/ferrum run

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## Lint, types and the whole test suite.
	$(BIN)/python -m pytest -m 'not soak and not clients'

soak: $(VENV)/.test  ## The long runs.
	$(BIN)/python -m pytest -m soak --timeout 7200

test-clients: $(VENV)/.test  ## Browser and Node clients.
	$(BIN)/python -m pytest -m clients --timeout 1800

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
