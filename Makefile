# `make run` and `make test` do all the set-up they need: a virtual environment in .venv, made by a Python of 3.11 or
# later (PYTHON=python3.12 make run chooses one).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
# Two more than there are cores: tests of containers wait half of their time.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 2)')
# Tests start hundreds of processes: their modules are compiled once, not by each of them.
unexport PYTHONDONTWRITEBYTECODE
PACKAGES := images workloads nemesis checkers results harness faultline examples tests

.DEFAULT_GOAL := help
.PHONY: help run test lint types pythons collect format pytest torture bench fuzz incidents shrinking hunting finding mutants docs constraints clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 14

run: $(READY) ## set up, then one run under faults (ARGS="--seed 7 --faults kill" passes options on)
	$(BIN)/faultline run $(ARGS)

test: ## run everything that CI checks
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint types pythons collect
	@$(MAKE) --no-print-directory pytest

pythons: | $(BIN)/python ## give another Python here the libraries of the simulation, so that tests compare digests
	$(BIN)/python -m tests.simulation.other_pythons install

lint: $(READY) ## check format, style and import contracts
	$(BIN)/ruff format --check $(PACKAGES)
	$(BIN)/ruff check $(PACKAGES)
	$(BIN)/lint-imports --no-cache

types: $(READY) ## run mypy, strict
	$(BIN)/mypy

collect: $(READY) ## find the tests, which compiles them and all that they import for the processes of `make pytest`
	-@$(BIN)/pytest --collect-only -q $(ARGS) >/dev/null

format: $(READY) ## format the sources
	$(BIN)/ruff format $(PACKAGES)
	$(BIN)/ruff check --fix $(PACKAGES)

pytest: $(READY) ## run the tests alone (ARGS="-k high_watermark" chooses)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

torture: $(READY) ## test the full protocol on 500 seeds, and find every mutant
	$(BIN)/faultline torture $(ARGS)

bench: $(READY) ## measure simulation, checkers, clients, broker and lossy disk
	$(BIN)/faultline bench $(ARGS)

fuzz: $(READY) ## 100,000 damaged frames against a broker and a controller (ARGS="--frames 5000 --seed 3")
	$(BIN)/python -m tests.fuzz.campaign $(ARGS)

incidents: $(READY) ## tell every shipped incident in simulation, and measure each for the README
	$(BIN)/faultline incident run --all --record docs/incident-measurements.json $(ARGS)

shrinking: $(READY) ## shrink the first failing run of each of twenty mutants that has not been measured for the docs
	$(BIN)/python -m tests.harness.shrinking.campaign --out docs/shrinking-measurements.jsonl $(ARGS)

hunting: $(READY) ## compare guided search with random runs on more paired ranges, for the docs
	$(BIN)/python -m tests.harness.hunt.comparison --out docs/hunt-measurements.jsonl $(ARGS)

finding: $(READY) ## compare how soon guided search and random runs find two rules, on more paired ranges, for the docs
	$(BIN)/python -m tests.harness.hunt.finding --out docs/hunt-finds.jsonl $(ARGS)

mutants: $(READY) ## search on for every mutant, for the docs (ARGS="--budget 8", in CPU hours)
	nice -n 19 $(BIN)/faultline mutants --record docs/mutants.json $(ARGS)

docs: $(READY) ## write the generated parts of the docs
	FAULTLINE_WRITE_DOCS=1 $(BIN)/pytest tests/docs

constraints: ## pin the versions of a fresh environment
	rm -rf $(VENV)
	@$(MAKE) --no-print-directory venv-without-pins
	{ echo '# The exact versions the tests ran with; `make constraints` writes this file anew.'; \
	  $(BIN)/pip freeze --exclude-editable | sort -f; } > constraints.txt
	touch $(READY)

.PHONY: venv-without-pins
venv-without-pins:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -e '.[dev]'

# pip takes half a minute of one processor: the environments of other Pythons are made beside it.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Faultline needs Python 3.11 or later; name one: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'Python lacks venv; on Debian: apt-get install python3-venv' >&2; exit 1; }

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]' -c constraints.txt
	@touch $@

clean: ## remove the environment and the caches, never results/
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(PACKAGES) -name __pycache__ -type d -prune -exec rm -rf {} +
