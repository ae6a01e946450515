# `make demo` and `make test` do all the set-up each, on a machine that has nothing of ours.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check bench clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/operator  ## train a small RWKV on Shakespeare with three unequal workers and watch it learn
	@$(BIN)/swarmctl demo $(DEMO)

# Three at once, since the tests in the lab mostly wait. They take longest, so they come first, the longest of all ahead.
test: $(VENV)/dev  ## every test
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
		tests/swarm/test_stack_way.py tests/swarm tests/local tests/agent tests

check: $(VENV)/dev  ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/dev  ## every benchmark, each beside its peer
	@$(BIN)/python -m bench

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# One marker a set of dependencies, so that `make demo` never installs what only the tests need.
$(VENV)/operator $(VENV)/dev: pyproject.toml tools/setup
	@PYTHON=$(PYTHON) tools/setup $(VENV) $(@F)
