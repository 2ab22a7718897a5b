# `make demo` and `make test` work from a fresh clone; `make help` lists the rest.
# Settings: PYTHON=python3.12 (makes .venv), WORKERS=4 (parallel tests), ARGS="-k softmax" (passed on to pytest, or to the benchmarks),
# INSTALL=0 (system packages that are missing are named, not installed).
SHELL := /bin/bash
PYTHON ?= python3
INSTALL ?= 1
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
ON_DAWN := tests/dawn tests/gpu tests/test_few.py tests/runtime/test_indices.py
# Only what requirements/*.txt lock, with their hashes; bytecode is written when something is imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install --no-deps --no-build-isolation --no-compile
# A worker is one core's work: PyTorch's threads would only wait for each other, busily.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
export INSTALL
# What is imported is compiled once: without its bytecode, PyTorch and ExecuTorch cost each process six seconds more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo web-demo test test-dawn test-web test-quick test-heavy lint types docs format release-check bench lock audit clean
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: .venv/.base .venv/.vulkan ## generate a short story with the bundled language model
	@$(BIN)/ptegpu demo

web-demo: .venv/.base ## make a web page of the bundled language model, and serve it
	@mkdir -p build && $(BIN)/ptegpu web demo -o build/web-demo --serve

# What is in few.zip is in the tables of tests/ops, too: it runs on Dawn, and where there is no PyTorch.
test: .venv/.test .venv/.vulkan ## run the tests; installs PyTorch and ExecuTorch
	$(PYTEST) -n $(WORKERS) --dist worksteal --ignore tests/test_few.py -m "not heavy or chosen" $(ARGS) tests
	@mkdir -p build; tools/node.sh 2>/dev/null && export PTEGPU_CHROMIUM=$$(tools/chromium.sh); \
	$(MAKE) --no-print-directory test-web >build/test-web.log 2>&1 & web=$$!; \
	$(MAKE) --no-print-directory test-dawn; dawn=$$?; wait $$web; web=$$?; cat build/test-web.log; exit $$((dawn + web))

test-dawn: .venv/.test ## run the tests of GPUs and operators on Dawn, on the SwiftShader of Debian's chromium
	@icd=$$(tools/swiftshader.sh) || { echo "The tests on Dawn are skipped."; exit 0; }; set -x; \
	VK_DRIVER_FILES=$$icd VK_ICD_FILENAMES=$$icd PTEGPU_ENGINE=dawn \
	$(PYTEST) -n $(WORKERS) $(ARGS) $(ON_DAWN) || [ $$? = 5 ] # 5: ARGS leave nothing

test-web: .venv/.test .venv/.vulkan ## check and test the browser's runner, under node and in Debian's chromium
	@tools/node.sh || { echo "The tests of web/ are skipped."; exit 0; }; set -e; \
	$(MAKE) --no-print-directory web/node_modules/.ready; set -x; \
	web/node_modules/.bin/tsc -p web; node web/build.mjs --check; \
	node --test --test-timeout=60000 --test-reporter=dot web/test/*.test.mjs; \
	export PTEGPU_CHROMIUM=$${PTEGPU_CHROMIUM-$$(tools/chromium.sh)}; \
	[ "$$PTEGPU_CHROMIUM" ] || echo "The tests in a browser are skipped."; \
	$(PYTEST) $(ARGS) tests/web/browser || [ $$? = 5 ] # 5: ARGS leave nothing

test-quick: .venv/.quick .venv/.vulkan ## run the tests that need no PyTorch, in about a minute
	$(PYTEST) -n $(WORKERS) --dist worksteal -p tests.torchless -m "not slow and not torch and not heavy" $(ARGS) tests

test-heavy: .venv/.test .venv/.vulkan ## run the tests that `make test` leaves out, for minutes
	$(PYTEST) -n $(WORKERS) --dist worksteal -m heavy $(ARGS) tests

lint: .venv/.dev ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.words

types: .venv/.dev ## check types
	$(BIN)/mypy

docs: .venv/.dev ## build the documentation into build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

release-check: .venv/.dev ## build the packages, install each into an empty environment, and try it
	$(BIN)/python -m tools.release_check $(ARGS)

format: .venv/.dev ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.base .venv/.vulkan ## host-side costs: recording, calls, new lengths, starting
	@$(BIN)/python -m benchmarks record calls lengths start $(ARGS)

lock: .venv/.made ## write requirements/*.txt anew, of pyproject.toml and constraints.txt
	$(BIN)/python -m tools.lock

audit: .venv/.made ## ask a database what is known against the packages of requirements/*.txt
	@$(BIN)/python -m tools.audit

clean: ## remove .venv and all caches
	rm -rf .venv web/node_modules web/types build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Each file below stands for a finished step, redone when what it depends on is newer.

.venv/.made:
	@tools/make-venv.sh "$(PYTHON)"
	@touch $@

.venv/.base: .venv/.made pyproject.toml requirements/demo.txt
	@echo "Installing ptegpu into .venv"
	@$(PIP) --require-hashes -r requirements/demo.txt
	@$(PIP) -e .
	@touch $@

.venv/.quick: .venv/.base requirements/quick.txt
	@echo "Installing the test tools into .venv"
	@$(PIP) --require-hashes -r requirements/quick.txt
	@touch $@

.venv/.test: .venv/.base requirements/cpu.txt requirements/test.txt
	@echo "Installing PyTorch, ExecuTorch and the test tools into .venv (some minutes)"
	@# PyTorch's build for CPUs is a tenth as large; where no index of pip's has it, the next line takes the other
	@$(PIP) --require-hashes -r requirements/cpu.txt 2>/dev/null || true
	@$(PIP) --require-hashes -r requirements/test.txt
	@tools/torch.sh $(BIN)/python
	@touch $@

.venv/.dev: .venv/.base requirements/dev.txt
	@echo "Installing Ruff and mypy into .venv"
	@$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

web/node_modules/.ready: web/package-lock.json
	@echo "Installing the tools of web/ into web/node_modules"
	@cd web && npm ci --ignore-scripts --silent
	@touch $@

.venv/.vulkan: .venv/.base
	@tools/ensure-vulkan.sh $(BIN)/python && touch $@ || true
