# Every daily task is a target here; `make help` lists them. Set-up is done by itself, into .venv only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(VENV)/.torch
FRAMEWORKS := $(VENV)/.frameworks
SITE := $(VENV)/.site
GENERATOR := $(VENV)/generator
FLOWER := $(VENV)/flower
MUTATIONS := $(VENV)/.mutations
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	--upgrade --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo sample run compose test test-frameworks soak mutations audit check format openapi docs bench failover deployments citus lock clean torch screenshots dist sbom

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.lock pyproject.toml sdk/pyproject.toml hatch_build.py web/package.json web/package-lock.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@npm --version > /dev/null || { echo "npm is needed, which fetches Chart.js: apt-get install npm"; exit 1; }
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements-dev.lock
	@$(PIP) --no-deps --no-build-isolation -e . -e sdk
	@touch $@

# What the tests of the trainers' adapters need besides. PyPI's torch for Linux on x86-64 needs 3 GB of CUDA even to be
# imported, so a CPU build is taken where pip's find-links have one, and CUDA added where torch cannot do without.
$(TORCH): $(STAMP) requirements-torch-cpu.lock requirements-torch.lock requirements-cuda.lock
	@echo "Adding torch, for the tests (once; half a minute, or 3 GB where no CPU build of it is at hand) ..."
	@$(PIP) --no-index --no-deps --require-hashes -r requirements-torch-cpu.lock 2>/dev/null || true
	@$(PIP) --no-deps --require-hashes -r requirements-torch.lock
	@$(BIN)/python -W ignore -c 'import torch' 2>/dev/null || $(PIP) --no-deps --require-hashes -r requirements-cuda.lock
	@$(BIN)/python -W ignore -c 'import torch'
	@touch $@

# Further frameworks, whose adapters are tested.
$(FRAMEWORKS): $(TORCH) requirements-frameworks.lock
	@echo "Adding Transformers, JAX, Keras, W&B and NVIDIA FLARE, for the tests (once; a minute) ..."
	@$(PIP) --no-deps --require-hashes -r requirements-frameworks.lock
	@touch $@

# Flower; beside the rest, since it needs an older typer.
$(FLOWER): $(STAMP) requirements-flower.lock
	@rm -rf $@
	@$(PIP) --no-deps --require-hashes --target $@ -r requirements-flower.lock
	@touch $@

# What builds the documentation, and nothing else needs.
$(SITE): $(STAMP) requirements-docs.lock
	@$(PIP) --no-deps --require-hashes -r requirements-docs.lock
	@touch $@

# What makes a client from openapi/openapi.json, for a test; beside the rest, since it needs an older typer.
$(GENERATOR): $(STAMP) requirements-generator.lock
	@rm -rf $@
	@$(PIP) --no-deps --require-hashes --target $@ -r requirements-generator.lock
	@touch $@

# What changes the code and finds the tests that run a line, for the mutations.
$(MUTATIONS): $(STAMP) requirements-mutations.lock
	@$(PIP) --no-deps --require-hashes -r requirements-mutations.lock
	@touch $@

setup: $(STAMP) ## install all that serving, the demo and the checks need, pinned, into .venv

torch: $(TORCH) ## add torch, Opacus and Lightning, which the tests, the guide and an example need

demo: $(STAMP) ## watch a real DP-SGD training being stopped at its budget
	@$(BIN)/epsilon-ledger demo

sample: $(STAMP) ## serve a sample organisation with a live run, from a throw-away database
	@$(BIN)/epsilon-ledger serve --sample

run: $(STAMP) ## serve on 127.0.0.1:8000 with the SQLite file epsilon-ledger.db
	@$(BIN)/epsilon-ledger serve --host 127.0.0.1 --port 8000

compose: ## try the service in containers: PostgreSQL, two replicas and a proxy (needs docker compose)
	@deploy/secrets.sh deploy/compose/secrets
	@docker compose --file deploy/compose/compose.yaml up --build --detach

# Each process with one thread for its matrices: several of them turn in circles while they wait for each other. And
# what is compiled is kept, whatever the environment says: hundreds of processes would each compile the service anew.
# One process more than CI has processors: who waits for a server or a timeout leaves its processor to another one.
test: $(STAMP) ## run the tests of service, accountant, client and dashboard, which need no framework
	@RECORD_PROCESSOR_SECONDS=$(RECORD) OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 \
		--dist loadfile --no-loadscope-reorder --durations=10

# No more processes than processors: each imports all frameworks anew.
test-frameworks: $(FRAMEWORKS) $(FLOWER) ## run the tests with Opacus, Lightning, Transformers, JAX, Keras, Flower, FLARE and W&B
	@RECORD_PROCESSOR_SECONDS=$(RECORD) OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 \
		--dist loadfile --no-loadscope-reorder --durations=10 tests/frameworks

soak: $(FRAMEWORKS) $(FLOWER) $(GENERATOR) ## run the long searches and all their cases (RELIABILITY_ROUNDS rounds, default 50), failover and deployments
	@TEST_BOTH_DATABASES=1 RELIABILITY_ROUNDS=$${RELIABILITY_ROUNDS:-50} $(BIN)/python -m pytest -x \
		tests/reliability tests/frameworks/test_kills.py tests/frameworks/test_opacus_machine.py \
		tests/service/test_reservation_machine.py tests/service/test_counted_steps.py tests/service/test_changed_cells.py
	@TEST_BOTH_DATABASES=1 $(BIN)/python -m pytest -x -m soak tests
	@$(BIN)/python -m pytest -x --hypothesis-profile=soak tests/accounting tests/ledger tests/service/test_planning.py \
		tests/api/test_schemathesis.py
	@$(MAKE) failover deployments

mutations: $(MUTATIONS) ## change the code at a fixed sample of places: does a test fail each time? (an hour)
	@$(BIN)/python -m tests.mutations

dist: $(STAMP) ## build the wheels and sdists of service and client into dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build --directory dist
	@cd sdk && ../$(BIN)/python -m hatchling build --directory ../dist

sbom: $(STAMP) ## list what the service is made of, as CycloneDX, in dist/epsilon-ledger.cdx.json
	@mkdir -p dist
	@$(BIN)/python -m deploy.sbom > dist/epsilon-ledger.cdx.json.new && mv dist/epsilon-ledger.cdx.json.new dist/epsilon-ledger.cdx.json

audit: $(STAMP) ## look all that is locked, and the SBOM, up for known weaknesses (needs a network)
	@$(BIN)/python -m deploy.audit

check: $(STAMP) ## format, lint, types, layers: what CI asks for
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.processor_budget

format: $(STAMP) ## format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

screenshots: $(STAMP) ## take pictures of every page into .cache/screenshots, and those of the documents
	@$(BIN)/python -m benchmarks.screenshots .cache/screenshots

openapi: $(STAMP) ## write openapi/openapi.json anew
	@$(BIN)/epsilon-ledger openapi > openapi/openapi.json.new && mv openapi/openapi.json.new openapi/openapi.json

docs: $(SITE) ## build the documentation into site/; a link or an anchor that leads nowhere fails
	@$(BIN)/zensical build --clean --strict

bench: $(STAMP) ## print the figures that docs/operations/performance.md keeps
	@$(BIN)/python -m benchmarks

failover: $(STAMP) ## lose a database leader under load, ROUNDS times (default 20); needs root and Debian's patroni, etcd, haproxy, pgbouncer
	@$(BIN)/python -m benchmarks.failover --rounds $(or $(ROUNDS),20)

deployments: ## try the compose file on Docker, or the Kubernetes manifests in a cluster (CONTEXT, of kubectl)
	@deploy/try.sh $(if $(CONTEXT),kubernetes $(CONTEXT),compose)

citus: $(STAMP) ## try the service on a Citus cluster that is built from CITUS_SOURCE, a folder or git repository
	@$(BIN)/python -m benchmarks.citus --source '$(CITUS_SOURCE)' --rounds $(or $(ROUNDS),8)

lock: $(STAMP) ## pin the newest versions that pyproject.toml admits
	@$(COMPILE) pyproject.toml --extra postgresql --extra telemetry -o requirements.lock
	@$(COMPILE) pyproject.toml --extra postgresql --extra telemetry --group dev -c requirements.lock -o requirements-dev.lock
	@$(COMPILE) --group docs -c requirements-dev.lock -o requirements-docs.lock
	@$(COMPILE) --group mutations -c requirements-dev.lock \
		$$(awk -F '==' '/^[a-z]/ { print "--no-emit-package", $$1 }' requirements-dev.lock) -o requirements-mutations.lock
	@sed -i '/^#/d' requirements-mutations.lock
	@$(COMPILE) --group generator -o requirements-generator.lock
	@$(COMPILE) --group torch -c requirements-dev.lock -o requirements-torch.lock
	@awk '/^[a-z]/ { cuda = /^(cuda|nvidia|triton)[-=]/ } cuda' requirements-torch.lock > requirements-cuda.lock
	@awk '/^[a-z]/ { cuda = /^(cuda|nvidia|triton)[-=]/ } !cuda' requirements-torch.lock > requirements-torch.lock.new
	@mv requirements-torch.lock.new requirements-torch.lock
	@$(COMPILE) --group frameworks -c requirements-dev.lock -c requirements-torch.lock -c requirements-cuda.lock \
		$$(awk -F '==' '/^[a-z]/ { print "--no-emit-package", $$1 }' requirements-torch.lock requirements-cuda.lock) \
		-o requirements-frameworks.lock
	@sed -i '/^#/d' requirements-frameworks.lock
	@$(COMPILE) --group flower -o requirements-flower.lock

clean: ## remove what set-up and tests made
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache dist site
