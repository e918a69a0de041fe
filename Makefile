# Everything a contributor runs. `make demo` and `make test` need only Python 3.11 and a network.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test soak check docs format bench fuzz dist installs oldest newest licences schema clean .venv names chromium

# Many short Python processes run here; without bytecode on disk each would compile torch again.
unexport PYTHONDONTWRITEBYTECODE

# The first of these that is new enough, unless PYTHON says which.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; \
	done)
BIN := .venv/bin

# uv reads neither pip's settings nor pip's separator.
empty :=
space := $(empty) $(empty)
comma := ,
PIP_FIND_LINKS ?=
UV_FIND_LINKS ?= $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
export UV_FIND_LINKS

# PyPI's torch for Linux brings gigabytes of CUDA. Unless a build is offered in a local folder, take
# the CPU one from pytorch.org. `make test UV_TORCH_BACKEND=auto` takes what suits the GPU.
TORCH := $(wildcard $(addsuffix /torch-*.whl,$(subst $(comma),$(space),$(UV_FIND_LINKS))))
ifeq ($(shell uname -s),Linux)
ifeq ($(TORCH),)
UV_TORCH_BACKEND ?= cpu
export UV_TORCH_BACKEND
endif
endif

help: ## Show this list (the default)
	@awk -F ':.*## ' '/^[.a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "ARGS passes options on: make demo ARGS=--help, make test ARGS='-k merge -x'"

.venv: .venv/installed ## Make the virtual environment with all that development needs

# A stamp, for the folder itself is newer than its inputs even when the installation failed.
.venv/installed: pyproject.toml deploy/constraints.txt
	@test -n "$(PYTHON)" || { echo "rankscope needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet -c deploy/constraints.txt uv
	@# Plain pip is slow, but knows the indexes in pip's own configuration, which uv does not read.
	$(BIN)/uv pip install --python $(BIN)/python -c deploy/constraints.txt -e '.[dev]' || \
		{ echo "uv failed; trying pip" >&2; \
		$(BIN)/python -m pip install -c deploy/constraints.txt -e '.[dev]'; }
	@touch $@

demo: .venv/installed ## Train a small model and watch it in the browser
	$(BIN)/rankscope demo $(ARGS)

test: .venv/installed chromium ## Run the tests
	$(BIN)/python -m pytest --timeout 300 $(ARGS)

soak: .venv/installed ## Run the chaos tests at length: half an hour or more
	RANKSCOPE_SOAK=$${RANKSCOPE_SOAK:-1} $(BIN)/python -m pytest tests/chaos --timeout 7200 $(ARGS)

check: .venv/installed names ## Check format, lint and types; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --project .

docs: .venv/installed ## Make the documentation's site in build/docs; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -E -q docs build/docs $(ARGS)

format: .venv/installed ## Format the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/installed ## Run the benchmarks, one after the other
	@for benchmark in $(wildcard benchmarks/*.py); do \
		echo "== $$benchmark"; $(BIN)/python "$$benchmark" $(ARGS); done

fuzz: .venv/installed ## Let atheris look for messages that a collector cannot bear
	$(BIN)/uv pip install --quiet --python $(BIN)/python 'atheris>=2.3'
	mkdir -p build/corpus
	$(BIN)/python tests/collector/fuzz.py build/corpus tests/wire/corpus $(ARGS)

dist: .venv/installed ## Make the sdist and the wheel, and check them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

installs: dist ## Install the wheel with each extra alone, and use it
	$(BIN)/python tests/release/installs.py dist/*.whl $(ARGS)

# The oldest releases of what rankscope imports by itself, or the newest that this Python takes; of
# what those import, the newest. Of torch a build in a local folder is the oldest that is allowed, which
# uv would take from PyPI, for 2.13.0 goes before 2.13.0+cpu.
TRIED := torch,jax,lightning,transformers,collector,parquet,viewer,notebook,toolkit,prometheus,tensorboard,wandb
TESTING := equinox|flax|hypothesis|jsonschema|msgpack|nbclient|nbformat|optax|playwright|psutil|pytest.*|PyYAML

oldest: CHOSEN := --resolution lowest-direct $(TORCH) $$(grep ^triton== deploy/constraints.txt)
oldest: ## Run the tests with the oldest libraries that pyproject.toml allows
newest: CHOSEN := --upgrade
newest: ## Run the tests with the newest libraries; gigabytes of CUDA come with torch
oldest newest: .venv/installed
	$(PYTHON) -m venv --clear build/$@
	$(BIN)/uv pip install --python build/$@/bin/python -e '.[$(TRIED)]' $(CHOSEN) \
		$$(grep -E '^($(TESTING))==' deploy/constraints.txt)
	build/$@/bin/python -m pytest --timeout 300 -W default \
		tests/sketch tests/wire tests/merge tests/relay tests/store tests/rules tests/collector \
		tests/agent tests/config tests/doctor tests/examples tests/launch tests/logframe tests/sinks tests/viewer \
		tests/test_command_line.py tests/test_extras.py $(ARGS)

licences: .venv/installed ## Write docs/licences.md
	$(BIN)/python tests/release/licences.py > docs/licences.md

schema: .venv/installed ## Write config/config.schema.json
	$(BIN)/python tests/release/config_schema.py > config/config.schema.json

clean: ## Remove all that make and the tools made; runs are kept
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The type checker finds `rankscope` through links to its parts, for it does not follow the editable
# install. One link each: a link to the root would lead back into .venv.
names:
	@rm -rf .venv/names && mkdir -p .venv/names/rankscope
	@for part in py.typed *.py */__init__.py; do \
		test ! -e "$$part" || ln -s "../../../$${part%/__init__.py}" .venv/names/rankscope/; done

# The browser tests skip without a browser, so this never fails.
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing chromium for the browser tests"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium && exit 0; \
	fi; \
	echo "The browser tests will skip: no chromium. Install it: sudo apt-get install chromium" >&2
