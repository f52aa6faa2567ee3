# `make help` lists the tasks. Nothing needs them: `make -n TASK` shows what one runs.
PYTHON ?= python3
BIN := .venv/bin
# a test process for each processor, each given one file of tests after another
PARALLEL := --numprocesses auto --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test quick lint format docs bench clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; name one: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "this Python cannot make a venv; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

.venv/demo-ready: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[server,reference]'
	@touch $@

.venv/dev-ready: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ .venv/demo-ready

demo: .venv/demo-ready ## see what the registry is for, end to end, on this machine
	@$(BIN)/meshnet demo

test: .venv/dev-ready ## run every test (needs a few hundred MB: a real model is among them)
	$(BIN)/pytest $(PARALLEL)

quick: .venv/dev-ready ## run the tests that take less than about ten seconds each
	$(BIN)/pytest $(PARALLEL) -m 'not slow'

lint: .venv/dev-ready ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev-ready ## put the code into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev-ready ## write the generated pages of docs/reference anew
	$(BIN)/meshnet schema export --dir docs/reference/schemas
	$(BIN)/meshnet schema pages --dir docs/reference

bench: .venv/dev-ready ## measure, each figure beside its limit in the same run
	$(BIN)/meshnet bench fold
	$(BIN)/meshnet bench fold --no-verify
	$(BIN)/meshnet bench replay
	$(BIN)/meshnet bench replay --verify
	$(BIN)/meshnet bench route
	$(BIN)/meshnet bench route --purpose certify
	$(BIN)/meshnet bench publish
	$(BIN)/meshnet bench forward --model gemma
	$(BIN)/meshnet bench memory

clean: ## remove what the tasks made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
