# Two commands do everything: `make demo` (the main job) and `make test`. Both install what they need first.
PYTHON ?= python3
BIN := .venv/bin
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: install demo test check stress bench docs clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[engine,lab,dev]'
	touch $@

demo: install
	$(BIN)/longturn demo

test: install
	$(BIN)/pytest tests

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests

stress: install
	$(BIN)/pytest stress

clean:
	rm -rf .venv build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
