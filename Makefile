# Every target sets up .venv by itself; a second run starts at once.
PYTHON ?= python3
VENV := .venv
# Tables for benchmarks/regression.py, which says where they come from.
UCI ?= UCI_Datasets
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test slow browser lint package bench docs screenshots figures reproduce clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "cramix needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]' --group dev
	touch $@

demo: $(STAMP)  ## groups that EM misses and the fits of every method: tables and a picture
	$(BIN)/cramix demo --out demo.png

test: $(STAMP)  ## all tests but the slow ones, with the examples in docstrings and pages
	$(BIN)/python -m pytest -n 2 -m "not slow"

browser:  ## Chromium for the tests of pages, from Debian's packages unless it is there
	@command -v chromium chromium-browser google-chrome >/dev/null || (apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)

slow: $(STAMP) browser  ## the slow tests
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(STAMP)  ## style, types, layers, workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github

package:  ## the sdist and the wheel in dist/, checked, and installed in an empty environment
	rm -rf dist .package
	$(PYTHON) -m venv .package/tools
	.package/tools/bin/pip install --quiet --disable-pip-version-check build twine
	.package/tools/bin/python -m build
	.package/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv .package/empty
	.package/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .package && empty/bin/python -c 'import cramix; print(cramix.__version__)'
	.package/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "$$(echo dist/*.whl)[cli]"
	cd .package && empty/bin/cramix --version

bench: $(STAMP)  ## cramix and its peers in one process; writes the pages in benchmarks/
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group bench
	$(BIN)/python benchmarks/univariate.py
	$(BIN)/python benchmarks/multivariate.py
	$(BIN)/python benchmarks/fitting.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/reinforcement.py
	$(BIN)/python benchmarks/regression.py $(UCI)
	$(BIN)/python benchmarks/recovery.py

docs: $(STAMP)  ## the site, in docs/_build/html; warnings are errors
	$(BIN)/python docs/widgets.py
	$(BIN)/python -m sphinx -W --keep-going -n -q docs docs/_build/html

screenshots: docs browser  ## every page of the site at two widths, light and dark, in docs/_build/screenshots
	$(BIN)/python docs/screenshots.py docs/_build/html docs/_build/screenshots

figures: $(STAMP)  ## recompute the tables and figures of the pages
	$(BIN)/python docs/precision.py
	$(BIN)/python docs/slicing.py
	$(BIN)/python docs/sketches.py
	$(BIN)/python docs/rl_known.py
	$(BIN)/python docs/networks.py
	$(BIN)/python examples/arm.py docs/networks/arm.png

reproduce: $(STAMP)  ## the paper's figures, in reproduction/
	mkdir -p reproduction
	$(BIN)/python -m experiments.figures --out reproduction

clean:
	rm -rf $(VENV) .package dist demo.png reproduction
