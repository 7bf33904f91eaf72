# Two commands do all the set-up: `make demo` and `make test`. They need Python 3.11 or newer, and nothing else.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
FLOOR := .venv-floor
AUDIT := .venv-audit
DOCS := .venv-docs
BIN := $(VENV)/bin
AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-more test-floor check docs audit bench soak clean

demo: $(VENV)/ready
	$(BIN)/python examples/demo.py

# Three at once on two cores: tests often wait for processes. Tests of one file share what they have set up, and
# tests/conftest.py says which files begin first.
test: $(VENV)/ready
	$(BIN)/python -m pytest $(AT_ONCE)

# Cases that repeat what others of the same test show: more seeds, more sizes, more numbers of workers.
test-more: $(VENV)/ready
	$(BIN)/python -m pytest $(AT_ONCE) -m more

# Long runs: more examples for every property, and every soak.
soak: $(VENV)/ready
	$(BIN)/python -m pytest $(AT_ONCE) -m "soak or not soak" --hypothesis-profile=soak

# What reads data, with the oldest releases that pyproject.toml allows.
test-floor: $(FLOOR)/ready
	$(FLOOR)/bin/python -m pytest $(AT_ONCE) -m "not soak" tests/formats tests/storage tests/datasets \
		tests/decode tests/plan tests/attacks

# Known vulnerabilities of what we depend on. Needs the network, for the database: the release runs it, CI does not.
# Strict: what could not be looked up counts as a failure.
audit:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet pip-audit
	$(AUDIT)/bin/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	print(*p['dependencies'], *sum(p['optional-dependencies'].values(), []), sep='\n')" > $(AUDIT)/requirements.txt
	$(AUDIT)/bin/pip-audit --strict -r $(AUDIT)/requirements.txt

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

# The site, in site/. Warnings are errors, and every internal link and anchor must lead somewhere.
docs: $(DOCS)/ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	$(DOCS)/bin/python tools/check_links.py site

# Peers go into an environment of their own: some of them pin old versions of what we test with.
bench: $(BENCH)/ready
	$(BENCH)/bin/python benchmarks/run.py $(BENCH_ARGS)

$(VENV)/ready: requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt -e .
	touch $@

$(FLOOR)/ready: requirements-floor.txt pyproject.toml
	$(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip install --quiet -r requirements-floor.txt -e .
	touch $@

$(DOCS)/ready: requirements-docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet -r requirements-docs.txt
	touch $@

$(BENCH)/ready: requirements-bench.txt requirements-bench-nodeps.txt pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet -r requirements-bench.txt -e .
	$(BENCH)/bin/python -m pip install --quiet --no-deps -r requirements-bench-nodeps.txt
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) $(FLOOR) $(AUDIT) $(DOCS) site
