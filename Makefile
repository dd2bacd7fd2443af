# Two commands do everything: `make demo` (the main job) and `make test`. Both install what they need first.
PYTHON ?= python3
BIN := .venv/bin
# As the engine sets it, for programs that load torch first.
export GOMP_SPINCOUNT ?= 10000
export TOKENIZERS_PARALLELISM ?= false
# Containers often set it, and then each of the many processes that the tests start compiles our modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test lint check stress bench docs docs-check clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[engine,lab,conversation,gateway,dev]'
	touch $@

demo: install
	$(BIN)/longturn demo

# Files stay whole: some tests look back on those before them.
test: install
	$(BIN)/pytest tests -n 2 --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

check: lint test

stress: install
	$(BIN)/pytest stress -n 2 --dist worksteal

# What each tier is worth, the runner against plain transformers, weights of few bits, and the engine's own work.
# Minutes; wants a quiet machine.
bench: install
	mkdir -p bench/results
	$(BIN)/python bench/micro.py --json bench/results/micro.json
	$(BIN)/python bench/against_transformers.py --json bench/results/transformers.json
	$(BIN)/python bench/few_bits.py --json bench/results/few_bits.json
	$(BIN)/python bench/tiers.py --json bench/results/tiers.json

docs: install
	$(BIN)/python docs/build.py

docs-check: install
	$(BIN)/python docs/build.py --check

clean:
	rm -rf .venv build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
