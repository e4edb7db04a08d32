# The one task file, for people and for CI. Every target makes what it needs; nothing has to be run before it.
# Variables: PYTHON (a CPython 3.11), EXTRAS (of the package), PYTEST_ARGS, BENCH_ARGS, TORCH_CPU_INDEX.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-harnesses check bench bench-proxy docs clean postgres engine

BIN := .venv/bin
EXTRAS ?= cpu,postgres,harnesses,dev
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=
BENCH_ARGS ?=

# The trainer runs on the torch that the engine runs on, the CPU wheel, which PyPI itself does not carry: PyTorch's own
# index is added only where pip's configuration does not already know the wheel.
WITH_TORCH_CPU = \
	case ",$(EXTRAS)," in *,cpu,*) \
		if ! $(BIN)/pip install --quiet --dry-run --no-deps 'torch==2.13.0+cpu' >/dev/null 2>&1; then \
			export PIP_EXTRA_INDEX_URL="$${PIP_EXTRA_INDEX_URL:-} $(TORCH_CPU_INDEX)"; \
		fi;; \
	esac

help: ## Say what the targets are
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: .venv/.installed engine ## The whole loop: a small real model gets better inside an agent library
	@$(BIN)/singletree demo

test: .venv/.installed engine postgres ## All tests but the slow ones; of the real harnesses one per dialect
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow and (not harness or dialect)" $(PYTEST_ARGS)

test-slow: .venv/.installed engine postgres ## The slow proofs
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m "slow and not harness" $(PYTEST_ARGS)

test-harnesses: .venv/.installed engine ## The real harnesses, each installed in an environment of its own (.cache/harnesses)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m harness tests/harnesses $(PYTEST_ARGS)

check: .venv/.installed ## Lint, format, types, house rules, generated docs, compose file
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/pytest tests/house

bench: bench-proxy ## bench-proxy; seconds per step of the last demo
	@$(BIN)/python -m benchmarks.demo_step

bench-proxy: .venv/.installed ## What the proxy costs beside a pass-through, agentlightning and LiteLLM (.cache/bench)
	@$(BIN)/python -m benchmarks.proxy_call $(BENCH_ARGS)

docs: .venv/.installed ## Write the generated parts of docs/ anew
	@$(BIN)/python docs/generate.py

clean: ## Remove environments, caches and runs
	rm -rf .venv .engine .cache .pytest_cache .ruff_cache .hypothesis runs build dist *.egg-info

.venv/.installed: pyproject.toml
	@for python in $(PYTHON) python3.11 python3 python; do \
		if "$$python" -c 'import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
			found="$$python"; break; \
		fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "error: no CPython 3.11 with venv found; install python3.11 and python3.11-venv, or say make PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	if [ ! -x $(BIN)/python ]; then "$$found" -m venv .venv; fi
	@echo "Installing Singletree with [$(EXTRAS)] into .venv: about 2 GB, some minutes"
	@$(WITH_TORCH_CPU); \
	$(BIN)/pip install --disable-pip-version-check -e '.[$(EXTRAS)]' >.venv/install.log 2>&1 || { \
		echo "error: pip could not install the dependencies (log: .venv/install.log); check the network, or point pip" \
			"at a mirror with PIP_INDEX_URL" >&2; \
		exit 1; \
	}
	@touch $@

# Knows itself whether there is anything to do; SINGLETREE_ENGINE_HOME puts it elsewhere.
engine: .venv/.installed
	@$(BIN)/singletree engine install

# Tests start a PostgreSQL of their own; only its programs have to be there.
postgres:
	@if ! command -v initdb >/dev/null && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; \
		else \
			echo "error: the tests need PostgreSQL's server programs; install them (Debian: sudo apt-get install postgresql)" >&2; \
			exit 1; \
		fi; \
	fi
