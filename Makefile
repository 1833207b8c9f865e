# make demo: optimise one example on what this machine has.   make test: all tests.   make check: what every commit must pass.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
STAMP := .venv/.installed
DEMO ?= examples/problems/dice_loss.py

.PHONY: help venv demo test bytecode thorough museum museum-proof check quick lint format gpu-test clean

help:
	@echo "make demo      optimise $(DEMO) on what this machine has; the result goes to runs/demo"
	@echo "make test      all tests (those that need a GPU are skipped, visibly, where there is none)"
	@echo "make thorough  all tests, with those that 'make test' has only a few of each kind of (half an hour on 2 cores)"
	@echo "make museum    every exhibit of the museum of cheats (minutes); 'make test' has one of each class"
	@echo "make museum-proof  every cheat of the museum gets through when its guards are off (minutes)"
	@echo "make check     format, lint, types, import contracts, quick unit tests"
	@echo "make format    rewrite the files as 'make check' wants them"
	@echo "make gpu-test  the tests that need a GPU; on a machine without network: make gpu-test PY=python3"
	@echo "make venv      .venv with the pinned requirements; PYTHON=... names the interpreter"
	@echo "make clean     remove caches (never .venv or runs)"

venv: $(STAMP)

$(BIN)/python:
	@for python in $(PYTHON) python3.12 python3.11 python3.13 python3.14 python3; do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        exec "$$python" -m venv .venv; \
	    fi; \
	done; \
	echo "make: no Python 3.11 or newer with its venv module on PATH; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
	exit 1

$(STAMP): requirements/base.txt requirements/dev.txt pyproject.toml | $(BIN)/python
	@echo "make: installing the pinned requirements into .venv (minutes the first time)" >&2
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

demo: $(STAMP)
	@rm -rf runs/demo
	@$(BIN)/tilewright optimize $(DEMO) --out runs/demo

# A worker more than processors: judges rest now and then.
TESTS := $(BIN)/python -m pytest -q -n $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 8))) --dist loadfile --no-loadscope-reorder

test: $(STAMP) bytecode
	@$(TESTS)

thorough: $(STAMP) bytecode
	@$(TESTS) -m "not proof"

# Once for all processes that tests start, each of which would compile the package's modules for itself.
bytecode: $(STAMP)
	@$(BIN)/python -m compileall -q src

museum: $(STAMP)
	@$(BIN)/python -m pytest -q tests/cheats -m "not proof"

# In `make check test` the quick tests run once, among all the others.
check: lint $(if $(filter test,$(MAKECMDGOALS)),,quick)

quick: $(STAMP)
	@$(TESTS) -m "not slow and not thorough" tests/unit

museum-proof: $(STAMP)
	@$(BIN)/python -m pytest -q tests/cheats -m proof

lint: $(STAMP)
	@$(BIN)/ruff format --check --quiet . || { echo "make: run 'make format'" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/mypy benchmarks/*.py
	@$(BIN)/lint-imports

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

PY ?= $(BIN)/python
gpu-test: $(if $(filter $(BIN)/python,$(PY)),$(STAMP))
	@PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PY) -m pytest -q tests/gpu
	@PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PY) -m pytest -q tests/cheats -m gpu

clean:
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/tilewright-tests"
	@find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
