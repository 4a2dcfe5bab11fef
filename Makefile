# Every command that a developer needs; `make` alone prints them. The set-up, a virtual environment in .venv, is made on
# first use, and again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   ?= .venv
PY     ?= $(VENV)/bin/python
ARGS   ?=
SEEDS  ?= 200
FROM   ?= 0
STRATEGIES ?=
DETECT ?=
STEP   ?=
SPEC   ?=
OUT    ?= gpu-figures
DEVICE ?= cuda
MINUTES ?= 25
PLAN   ?=
BEFORE ?= HEAD

# SPEC=1, or the name of an algorithm: serve and demo with a draft.
DRAFT := $(if $(SPEC),--speculative-algorithm $(if $(filter 1,$(SPEC)),eagle,$(SPEC)))

# The package that pip installs as torch. Empty: the CPU build, from pip's configured index, else from pytorch.org.
# On a machine with a GPU: make TORCH=torch==2.13.0 ...
TORCH  ?=
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_INDEX     := https://download.pytorch.org/whl/cpu

PIP     := $(VENV)/bin/python -m pip --disable-pip-version-check -q -q
SERVING := $(VENV)/.ready-to-serve
READY   := $(VENV)/.ready-to-develop
# The public JSON Schema test suite. jsonschema has it among its sources, in the version that is installed.
SUITE   := $(VENV)/json-schema-suite/README.md
# An interpreter named on the command line (make PY=python3 test-gpu) is used as it is, without a set-up.
ifneq ($(origin PY),file)
SERVING :=
READY   :=
SUITE   :=
endif

# A plan needs no set-up: Python itself prints it.
PLAN_GPU = $(if $(filter lease,$(PLAN)),$(PYTHON) -m bench.gpu.lease --step '$(STEP)',$(error PLAN: got $(PLAN), expected lease))

PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -q
# Only files with slow tests are imported: each process would take seconds to import the others.
SLOW   = $(shell grep -rlE --include='test_*.py' 'mark\.(slow|broad)|tests\.selecting' tests)
# Slow tests run in more processes than there are cores, because most of them wait for other processes.
MANY   := -n 4 --dist worksteal
# Unit tests run in parts, three at a time on two cores: some wait for processes. With pytest-xdist each process would
# import and collect the files of all.
GATEWAY := tests/gateway tests/deploy tests/protocol tests/runtime
COMPUTE := tests/model tests/scheduler tests/transfer tests/worker
SERVED  := tests/explore tests/explore_handoff tests/handoff tests/decode tests/prefill tests/unified
UNIT    := check-unit-gateway check-unit-compute check-unit-served check-unit-others
TOOLS  := $(PY) -m

# Tests start some hundreds of processes. Each would compile the project again if this variable were set.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup serve demo bench bench-commits bench-gateway bench-memory bench-step bench-trace bench-transfer soak check test \
  test-slow test-full test-faults test-cluster explore explore-handoff fuzz fuzz-grammars fuzz-schemas mutants gpu test-gpu \
  format largest clean check-format check-lint check-pages check-measured check-types check-imports check-unit $(UNIT)

help: ## print this list
	@echo "Baton: large language models with prefill and decode on separate workers."
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-22s %s\n", $$1, $$2}'
	@echo
	@echo "serve, demo, soak, fuzz, fuzz-grammars, fuzz-schemas, mutants, test-cluster and every bench pass ARGS on:  make serve ARGS='--prefill 2 --decode 2 --port 9000'"

# ---- run it ----

serve: $(SERVING) ## set up, then serve on this machine (the bundled model, unless ARGS='--model DIR')
	@$(PY) -m deploy serve $(DRAFT) $(ARGS)

demo: $(SERVING) ## set up, stream one answer, show the request's time line across the processes, stop; SPEC=1, eagle3 or mtp: with a draft
	@$(PY) -m deploy demo $(DRAFT) $(ARGS)

bench: $(READY) ## measure Baton beside vLLM (BATON_PEER_VLLM=/path/to/vllm); a load on any endpoint: baton bench --port 8000
	@$(PY) -m bench.peer $(ARGS)

bench-gateway: $(READY) ## measure the gateway: CPU per token, time added to TTFT, streams beside long prompts, calls of tools
	@$(PY) -m bench.gateway $(ARGS)

bench-memory: $(READY) ## measure what the prefix cache saves: tokens computed, bytes moved, TTFT; beside vLLM: make bench ARGS='--scenario trace'
	@$(PY) -m bench.memory $(ARGS)

bench-step: $(READY) ## measure what a decode step costs: PART=overlap, asks, spec, ranks, experts or grammar; ARGS='--help'
	@$(PY) -m bench.step $(or $(PART),overlap) $(ARGS)

bench-commits: $(READY) ## measure served tokens/s beside an earlier commit: BEFORE=COMMIT
	@$(PY) -m bench.commits $(BEFORE) $(ARGS)

bench-trace: $(READY) ## replay ten minutes of conversations on two pairs by each pairing policy: cached share, good share, latencies
	@$(PY) -m loadtest bench --dataset-name mooncake --dataset-path bench/trace/conversation.jsonl --goodput ttft:2000 itl:100 \
	  $(foreach policy,prefix_aware least_loaded round_robin,--serve '--prefill 2 --decode 2 --pairing $(policy)') $(ARGS)

bench-transfer: $(READY) ## measure how fast KV moves between two processes, beside the limits of memory and sockets
	@$(PY) -m bench.transfer $(ARGS)

soak: $(READY) ## 20 minutes of mixed load and a fault every 20 s; no answer may be wrong or lost, no process may grow
	@$(PY) -m bench.soak $(ARGS)

# ---- gates ----

check: $(READY) ## format, lint, lists of files, strict types, import contracts, unit tests: three and a half minutes on two idle cores
	@$(MAKE) --no-print-directory --keep-going --jobs 3 --output-sync=target \
	  $(UNIT) check-types check-format check-lint check-pages check-measured check-imports

check-format:
	@$(TOOLS) ruff format --check --quiet . || { echo "Not formatted. Run: make format"; exit 1; }

check-lint:
	@$(TOOLS) ruff check --quiet .

check-pages:
	@$(TOOLS) tests.pages --check

check-measured: # a list of what may be measured again, never a failure
	@$(TOOLS) tests.measured

check-types:
	@$(TOOLS) mypy

check-imports:
	@$(PY) -c 'from importlinter.cli import lint_imports_command as run; run()' --no-logo

check-unit:
	@$(MAKE) --no-print-directory --keep-going --jobs 3 --output-sync=target $(UNIT)

check-unit-gateway:
	@$(PYTEST) -n 0 $(GATEWAY)

check-unit-compute:
	@$(PYTEST) -n 0 $(COMPUTE)

check-unit-served:
	@$(PYTEST) -n 0 $(SERVED)

check-unit-others:
	@$(PYTEST) -n 0 $(addprefix --ignore ,$(GATEWAY) $(COMPUTE) $(SERVED))

test: check ## check, then slow tests (real processes), those that find what no other does: ten minutes in all on two idle cores
	@$(PYTEST) $(MANY) -m "slow and not broad and not full and not gpu" $(SLOW)

test-slow: $(READY) $(SUITE) ## the other slow tests: more cases of what make test holds; 23 minutes on a slow machine
	@$(PYTEST) $(MANY) -m "broad and not full and not gpu" $(SLOW)

test-full: test test-slow ## both, then the exhaustive tests: every topology, page size and chunk; hours
	@$(PYTEST) -n 2 -m "full and not gpu" --timeout 1800 --hypothesis-profile thorough

test-faults: $(READY) ## kill, end and pause every process at every phase; cut connections, damage frames
	@$(PYTEST) -n 2 -m faults -vv --no-header

test-cluster: $(READY) ## Ray on three machines (namespaces; needs root), 12 streams, faults, counts and flags that change: 10 minutes; ARGS='--times 5 --redis'
	@$(PY) -m tests.ray_hosts $(ARGS)

explore: $(READY) ## random schedules of the overlap scheduler under every strategy; for a night: SEEDS=100000
	@OMP_NUM_THREADS=1 $(PY) -m tests.explore --seeds $(SEEDS) --from $(FROM) --strategies '$(STRATEGIES)' $(if $(DETECT),--detect) $(if $(GROUPS),--groups)

explore-handoff: $(READY) ## random faults in a simulated gateway, prefill and decode; for a night: SEEDS=100000
	@OMP_NUM_THREADS=1 $(PY) -m tests.explore_handoff --seeds $(SEEDS) --from $(FROM) $(if $(GROUPS),--groups)

fuzz: $(READY) ## random and extreme bytes of clients, read by each parser of the gateway in a child; a minute each, or MINUTES=60
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PY) -m tests.fuzz --minutes $(if $(filter file,$(origin MINUTES)),1,$(MINUTES)) $(ARGS)

fuzz-grammars: $(READY) ## random, changed and public grammars on a running pair: right answers, no death, no long gap; MINUTES=120
	@OMP_NUM_THREADS=1 $(PY) -m tests.fuzz.served --minutes $(if $(filter file,$(origin MINUTES)),5,$(MINUTES)) $(ARGS)

fuzz-schemas: $(READY) ## random JSON schemas, and random answers of each through the real masks: all end and are valid; ARGS='--schemas 20000'
	@OMP_NUM_THREADS=1 $(PY) -m tests.fuzz.walks $(ARGS)

mutants: $(READY) ## break what has changed since BEFORE, then what mutants by hand break; tests must notice each; ARGS=--changed, or --all
	@OMP_NUM_THREADS=1 $(PY) -m tests.mutants $(if $(filter file,$(origin BEFORE)),,--before '$(BEFORE)') $(ARGS)

gpu: $(if $(PLAN),,$(READY)) ## on a GPU machine, 15 minutes: tests, a trace, speeds beside limits, service, parity (STEP= OUT= DEVICE=cpu PLAN=lease)
	@$(if $(PLAN),$(PLAN_GPU),$(PY) -m bench.gpu --step '$(STEP)' --out '$(OUT)' --device '$(DEVICE)' --minutes '$(if $(filter file,$(origin MINUTES)),15,$(MINUTES))')

test-gpu: $(READY) ## the tests that need a CUDA device
	@$(PY) -m pytest -q -m gpu -n 0

format: $(READY) ## format, apply the linter's fixes, and write the lists of files in READMEs
	@$(TOOLS) ruff check --fix --quiet . || true
	@$(TOOLS) ruff format .
	@$(TOOLS) tests.pages

largest: $(READY) ## print the ten largest files and classes of the product, with their lines
	@$(TOOLS) tests.largest

clean: ## remove the virtual environment, caches and build leftovers
	@rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- set-up ----

setup: $(READY) ## make the virtual environment and install everything (other commands do this when needed)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Baton needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Name another: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# torch comes first and from a CPU index: on Linux a bare "torch" would bring gigabytes of CUDA packages.
$(VENV)/.ready-to-serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Set-up for serving, once, into $(VENV); the downloads take minutes on a slow line."
	@$(PIP) install -c constraints.txt setuptools
	@echo "  1 of 2: torch $(TORCH_VERSION), the largest part: 200 MB and more"
	@$(PY) -c 'import torch' 2>/dev/null || \
	  if [ -n "$(TORCH)" ]; then $(PIP) install $(TORCH); \
	  elif [ "$$(uname)" != Linux ]; then $(PIP) install torch==$(TORCH_VERSION); \
	  else $(PIP) install torch==$(TORCH_VERSION)+cpu 2>/dev/null \
	    || $(PIP) install torch==$(TORCH_VERSION)+cpu --index-url $(CPU_INDEX); fi
	@echo "  2 of 2: Baton and the other packages"
	@$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-to-develop: $(VENV)/.ready-to-serve
	@echo "Set-up for tests and measurements, once, into $(VENV)"
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/json-schema-suite/README.md: constraints.txt | $(READY)
	@echo "Downloading the JSON Schema test suite, once"
	@rm -rf $(VENV)/json-schema-suite $(VENV)/jsonschema-sources
	@$(PIP) download --no-deps --no-binary jsonschema -d $(VENV)/jsonschema-sources $$(grep ^jsonschema== constraints.txt)
	@tar -xzf $(VENV)/jsonschema-sources/jsonschema-*.tar.gz -C $(VENV)/jsonschema-sources
	@mv $(VENV)/jsonschema-sources/jsonschema-*/json $(VENV)/json-schema-suite
	@rm -rf $(VENV)/jsonschema-sources
	@touch $@
