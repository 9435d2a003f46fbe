# `make demo` and `make test` set up everything that they need, and when run again do only what is left to do.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint slow clean

demo: $(READY)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

test: $(READY) lint
	@OMP_NUM_THREADS=2 $(BIN)/python -m pytest

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

slow: $(READY)
	@OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m slow --timeout 3600

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf outputs examples/data .pytest_cache .mypy_cache .ruff_cache .hypothesis
