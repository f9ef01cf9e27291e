# Every daily task is a target here; `make help` lists them. Set-up is done by itself, into .venv only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo run test torture mutations check format openapi bench lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.lock pyproject.toml sdk/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e sdk
	@touch $@

setup: $(STAMP) ## install everything, pinned, into .venv

demo: $(STAMP) ## watch a real DP-SGD training being stopped at its budget
	@$(BIN)/epsilon-ledger demo

run: $(STAMP) ## serve on 127.0.0.1:8000 with the SQLite file epsilon-ledger.db
	@$(BIN)/epsilon-ledger serve --host 127.0.0.1 --port 8000

test: $(STAMP) ## run every test
	@$(BIN)/python -m pytest -n 2 --dist loadfile

torture: $(STAMP) ## run the reliability tests long (EPSILON_LEDGER_TORTURE rounds, default 50)
	@EPSILON_LEDGER_TORTURE=$${EPSILON_LEDGER_TORTURE:-50} $(BIN)/python -m pytest tests/reliability -x

mutations: $(STAMP) ## break a copy of the repository, rule by rule: do the tests notice?
	@$(BIN)/python -m tests.mutations

check: $(STAMP) ## format, lint, types, layers: what CI asks for
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(STAMP) ## format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

openapi: $(STAMP) ## write openapi/openapi.json anew
	@$(BIN)/epsilon-ledger openapi > openapi/openapi.json.new && mv openapi/openapi.json.new openapi/openapi.json

bench: $(STAMP) ## print the figures that docs/performance.md keeps
	@$(BIN)/python -m benchmarks

lock: $(STAMP) ## pin the newest versions that pyproject.toml admits
	@$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --upgrade --quiet -o requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --group dev -c requirements.lock --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --upgrade --quiet -o requirements-dev.lock

clean: ## remove what set-up and tests made
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
