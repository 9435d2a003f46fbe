# `make demo`, `make demo-cogvideox`, `make demo-wan`, `make demo-reasoner`, `make demo-loop`, `make demo-actions` and `make test` set up everything that they need, and when run again do only what is left to do.
PYTHON ?= python3.11
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
# Processes that share the tests; many tests start two or four of their own, and wait for them.
WORKERS ?= 3
READY := $(VENV)/.ready

.PHONY: demo demo-cogvideox demo-wan demo-reasoner demo-loop demo-actions install test lint docs slow clean

demo: $(READY)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

demo-cogvideox: $(READY)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo_pipeline.sh cogvideox_demo

demo-wan: $(READY)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo_pipeline.sh wan_demo

demo-reasoner: $(READY)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo_reasoner.sh

demo-loop: $(READY)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo_loop.sh

demo-actions: $(READY)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo_actions.sh

install: $(READY)

# The files in the order of their rooms: the long ones come first, and no process waits for one at the end.
test: $(READY) lint
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

# The documentation site, in outputs/docs; a warning is an error.
docs: $(READY)
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs outputs/docs
	@echo "Built: outputs/docs/index.html"

slow: $(READY)
	@$(BIN)/python -m pytest -m slow --timeout 3600

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "$(PYTHON) is not Python 3.11 or newer: install Python 3.11, or name another one: make PYTHON=python3.12 …"; exit 2; }
	@echo "Setting up $(VENV) with $$($(PYTHON) -V) (minutes):"
	@echo "downloading about 100 packages, each listed when it is found, then installing them"
	@$(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --use-pep517 \
		-c constraints.txt -e '.[dev]' | awk '/^Collecting/ { print "  " $$2 } /^Installing collected/ { print "  installing" }'
	@touch $@
	@echo "Installed. Next: source $(VENV)/bin/activate; worldsmith recipes"

clean:
	rm -rf outputs examples/data .pytest_cache .mypy_cache .ruff_cache .hypothesis
