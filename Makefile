# The project's verbs; `make help` lists them. Needs Python 3.11 or newer; everything else is installed into .venv.

PYTHON ?= python3
HOME_DIR ?= var
EXAMPLES ?= 200
BIN := .venv/bin
# The environment is made anew when what it is made from changes.
STAMP := .venv/.installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
# One thread per process: test processes that spin on the same cores lose far more than they gain.
TEST_ENV := OMP_NUM_THREADS=1
# A file's tests stay together: they share servers that take seconds to start. In their own order, which has the files of few
# long tests first; and one process more than a small machine has cores, since many tests wait.
PYTEST := -n 3 --dist loadfile --no-loadscope-reorder -q
# Caches stay in the checkout, not in the user's home.
export MPLCONFIGDIR := $(CURDIR)/.venv/cache/matplotlib
export BUF_CACHE_DIR := $(CURDIR)/.venv/cache/buf

.DEFAULT_GOAL := help
.PHONY: help setup demo test check robustness faults histories fuzz static proto proto-baseline docs up tensorboard bench audit clean

help: ## List these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything, at the locked versions

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make setup PYTHON=python3.12" >&2; \
	  exit 1; }
	@echo "installing into .venv (a minute or two the first time)"
	@$(PYTHON) -m venv .venv
	@# --no-compile: Python compiles what it imports; compiling all of torch and transformers takes most of a minute.
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]'
	@rm -f .venv/.installed-*
	@touch $@

demo: setup ## Train a real 135M model for a few minutes and show what it learned
	@$(BIN)/python examples/demo.py

test: setup static ## Run all tests, real Postgres and Redis included
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST)

check: setup static ## Format, lint, types, import rules and the fast tests: about a minute
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST) -m "not slow"

robustness: setup ## Inject every fault as often as the targets say, and write docs/reliability.md (PPO_FAULT_SEED=... replays)
	@$(MAKE) --no-print-directory -j2 faults histories
	@cp var/fault-table.json docs/faults.json
	@$(BIN)/python docs/generate.py

FULL := PPO_FAULT_COUNTS=full $(TEST_ENV) $(BIN)/python -m pytest -q --timeout 1500
HISTORIES := tests/robustness/test_repository_machine.py

faults: setup
	@mkdir -p var
	PPO_FAULT_TABLE=var/fault-table.json $(FULL) --ignore $(HISTORIES) tests/robustness

histories: setup
	$(FULL) -n 2 $(HISTORIES)

fuzz: setup ## Send both doors random requests for some minutes (EXAMPLES=200 for each operation)
	$(TEST_ENV) PPO_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q --timeout 0 tests/integration/api/test_fuzz_http.py tests/integration/api/test_fuzz_grpc.py

static: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf breaking --against baseline.txtpb

proto-baseline: setup ## At a release: from now on the proto must only grow from what it is now
	cd proto && ../$(BIN)/buf build --exclude-source-info -o baseline.txtpb

proto: setup ## Lint the .proto files and make api/rpc/v1 from them again
	cd proto && ../$(BIN)/buf lint
	$(BIN)/python -m grpc_tools.protoc -Iapi/rpc/v1=proto/ppo/v1 \
	  --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  proto/ppo/v1/*.proto

docs: setup ## Write the generated documents and dashboards again
	$(BIN)/python docs/generate.py
	$(BIN)/python -m deploy.grafana.build

up: setup ## Run the embedded service in var/ (HOME_DIR=...), with the small Austen model at hand
	@$(BIN)/ppo up --home $(HOME_DIR) --model-root examples/models

tensorboard: setup ## Show the curves of all runs in var/ (HOME_DIR=...)
	@$(BIN)/tensorboard --logdir $(HOME_DIR)/runs

bench: setup ## Measure steps against TRL and the machine, the front door, and what the service costs a run (an hour)
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.floor
	$(BIN)/python -m benchmarks.frontdoor
	$(BIN)/python -m benchmarks.overhead

# Not of our environment: nothing here depends on it, and it on a lot. --strict: a package that cannot be looked up is an
# error, so that a run without PyPI does not look like one without findings.
audit: ## Look the locked versions up in PyPI's list of known vulnerabilities (needs the internet)
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check --no-input pip-audit==2.10.1
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean: ## Remove .venv and caches; var/ stays
	rm -rf .venv .venv-audit .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
