# Two commands do all the set-up on a fresh machine: `make run` and `make test`. Both need Python 3.11+, pip and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CLIENTS := .venv-clients
# Files of tests go to as many processes as there are processors, up to four: each of them loads PyTorch. One that dies
# ends the run: pytest-xdist can wait for ever where files are given out again.
TOGETHER := --numprocesses auto --maxprocesses 4 --dist loadfile --max-worker-restart 0
NATIVE := native/CMakeLists.txt $(wildcard native/src/* native/tier/*)

.PHONY: run test lint soak test-clients clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --config-settings cmake.define.FERRUM_STRICT=ON --editable '.[test]'
	touch $(VENV)/.run $@

run: $(VENV)/.run  ## Text from the built-in model.
	$(BIN)/ferrum run

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## Lint, types and the whole test suite.
	$(BIN)/python -m pytest $(TOGETHER) -m 'not soak and not clients'
	@echo "not run: the long runs (make soak); a browser, the Node SDK and other clients (make test-clients)"

soak: $(VENV)/.test  ## The long runs.
	$(BIN)/python -m pytest -m soak --timeout 7200

$(CLIENTS)/.made: tests/clients/suites/requirements.txt tests/clients/node/package.json
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --requirement tests/clients/suites/requirements.txt
	cd tests/clients/node && npm install --silent --no-package-lock
	command -v chromium || command -v google-chrome || $(CLIENTS)/bin/playwright install --with-deps chromium || apt-get install --yes chromium
	touch $@

test-clients: $(VENV)/.test $(CLIENTS)/.made  ## A browser, the Node SDK and other clients; SHOTS=FOLDER keeps screenshots.
	$(BIN)/python -m pytest -m clients --timeout 1800

clean:
	rm -rf $(VENV) $(CLIENTS) tests/clients/node/node_modules build dist .pytest_cache .mypy_cache .ruff_cache
