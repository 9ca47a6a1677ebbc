# What a person runs and what CI runs are the same targets. Everything happens in .venv, which `make` creates.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
CHAOS ?= 100000
SEED ?= 0

.PHONY: help demo test test-live chaos lint format types score bench bench-live wheel docs picture clean python

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
	  echo "The workbench needs Python 3.11 or newer; \`$(PYTHON)\` is $$($(PYTHON) --version 2>&1 || echo 'not there')." >&2
	  echo "Say which one to use: make PYTHON=/path/to/python3.12 demo" >&2
	  exit 1
	}

$(BIN)/python: | python
	@$(PYTHON) -m venv $(VENV) || {
	  echo "Python could not create $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2
	  rm -rf $(VENV)
	  exit 1
	}

# One stamp per set of extras: edit pyproject.toml and the next `make` installs again
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) -e .
	touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (a minute or two the first time) …" >&2
	$(PIP) -e '.[all]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) -e '.[dev]'
	touch $@

demo: $(VENV)/.all  ## triage a shipped incident: the verdict here, a report in demo-report.html
	@$(BIN)/workbench demo --out demo-report.html

test: $(VENV)/.dev  ## all quick tests that need no server; those left out are named at the end
	@$(BIN)/python -m pytest -n $(WORKERS) -q

test-live: $(VENV)/.dev  ## tests against real servers and browsers, which they install, start and stop (Debian, root), and the slow ones
	@$(BIN)/python -m pytest -q -m 'live or slow' $(LIVE_ARGS)

chaos: $(VENV)/.dev  ## remediation under faults, crashes and hands: CHAOS=100000 random sequences from SEED=0 on, over all cores
	@$(BIN)/python -m tests.remediation.chaos --sequences $(CHAOS) --seed $(SEED)

lint: $(VENV)/.dev  ## ruff, mypy --strict, the import directions
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev  ## let ruff lay out the code
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## write the generated pages and the README's verdict again
	@$(BIN)/python docs/generate.py

picture: $(VENV)/.dev  ## make docs/img/report.png again (needs chromium)
	@page=$$(mktemp -d)
	trap 'rm -rf "$$page"' EXIT
	$(BIN)/workbench demo --no-color --out "$$page/report.html" >/dev/null
	chromium --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
	  --user-data-dir="$$page/profile" --window-size=1200,1040 --screenshot=docs/img/report.png "file://$$page/report.html" >/dev/null 2>&1
	ls -l docs/img/report.png

score: $(VENV)/.core  ## attribution figures: per kind of source, and with sources left out
	@code=0
	for cases in benchmarks/attribution/cases ../shared/cases; do
	  [ -d "$$cases" ] || continue
	  echo "== $$cases"
	  $(BIN)/python benchmarks/attribution/score.py "$$cases" --command "$(BIN)/workbench triage {inputs} --output jsonl" \
	    --kinds --ablations --show none $(SCORE_ARGS) || code=1
	done
	exit $$code

bench: $(VENV)/.dev  ## speed against named peers, in one run (BENCH_ARGS=--quick for a short one, --browser for first paint)
	@$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

bench-live: $(VENV)/.dev  ## the same of live sources, against real servers that it starts and stops
	@bash benchmarks/live.sh $(BIN)/python

wheel: $(VENV)/.dev  ## build the distribution into dist/
	@rm -rf dist
	$(BIN)/python -m build --outdir dist

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist demo-report.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
