# Everything runs in .venv, which `make setup` creates with only Python >= 3.11, venv and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Small networks lose more to threads that wait for each other than they gain from them.
TEST_WORKERS ?= 2

.PHONY: demo test test-slow lint docs setup clean

# A 6-layer network on handwritten digits: blocks, end to end and shallow, one seed. The same command goes on.
demo: $(VENV)/installed
	$(BIN)/dblocks compare vit-digits --seeds 1 --methods end-to-end,shallow,blocks --budgets layer-evaluations \
		--presets default --out runs/demo $(DEMO)

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

test-slow: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m slow

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Material announces its end of life at every build.
docs: $(VENV)/installed
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs build site .pytest_cache .ruff_cache
