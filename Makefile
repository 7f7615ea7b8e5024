# Every target sets up what it needs: a fresh machine needs only Python 3.11, git and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all containers check fmt protos bench clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create the virtual environment and install Hansa into it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("Hansa needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.11 …" % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Hansa into $(VENV) (PyTorch is large: a minute or two the first time) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(STAMP)  ## run a federation of five sites on this machine (examples/digits)
	@$(BIN)/hansa run examples/digits/job.yaml

test: $(STAMP)  ## run the tests, except slow ones
	@$(BIN)/python -m pytest -n 4 --dist worksteal -q -m 'not slow'

test-all: $(STAMP)  ## run all tests, with clusters, hosts of their own and browsers
	@$(BIN)/python -m pytest -n 3 --dist worksteal -q

containers: $(STAMP)  ## try the images and compose files with podman or docker (minutes)
	@$(BIN)/python -m pytest tests/containers/compose.py -v -s -x --no-header

check: $(STAMP)  ## check style, types, import layers and generated code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python protos/compile.py --check

fmt: $(STAMP)  ## format the code and fix what the linter can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

protos: $(STAMP)  ## regenerate the protobuf modules
	@$(BIN)/python protos/compile.py

bench: $(STAMP)  ## run the benchmarks (about half an hour)
	@$(BIN)/python benchmarks/training_loop.py
	@$(BIN)/python benchmarks/round_overhead.py
	@$(BIN)/python benchmarks/next_task.py
	@$(BIN)/python benchmarks/commit_cost.py
	@$(BIN)/python benchmarks/memory.py
	@$(BIN)/python benchmarks/large_data.py
	@$(BIN)/python benchmarks/many_sites.py
	@$(BIN)/python benchmarks/long_history.py
	@$(BIN)/python benchmarks/engine_events.py
	@$(BIN)/python benchmarks/restart.py
	@$(BIN)/python benchmarks/partitions.py
	@$(BIN)/python benchmarks/fusion.py
	@$(BIN)/python benchmarks/async_gain.py
	@$(BIN)/python benchmarks/adapters.py

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) .tools build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
