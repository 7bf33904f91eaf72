# Two commands do all the set-up: `make demo` and `make test`. They need Python 3.11 or newer, and nothing else.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
BIN := $(VENV)/bin

.PHONY: demo test check bench soak clean

demo: $(VENV)/ready
	$(BIN)/python examples/demo.py

test: $(VENV)/ready
	$(BIN)/python -m pytest

# Long runs: more examples for every property, and every soak.
soak: $(VENV)/ready
	$(BIN)/python -m pytest -m "soak or not soak" --hypothesis-profile=soak

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Peers go into an environment of their own: some of them pin old versions of what we test with.
bench: $(BENCH)/ready
	$(BENCH)/bin/python benchmarks/run.py $(BENCH_ARGS)

$(VENV)/ready: requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt -e .
	touch $@

$(BENCH)/ready: requirements-bench.txt requirements-bench-nodeps.txt pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet -r requirements-bench.txt -e .
	$(BENCH)/bin/python -m pip install --quiet --no-deps -r requirements-bench-nodeps.txt
	touch $@

clean:
	rm -rf $(VENV) $(BENCH)
