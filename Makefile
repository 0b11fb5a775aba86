# Commands for those who change Rollserve; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PACKAGES := --editable 'client[compression,data,top,video]' --editable 'server[atari,data,envpool,hosts,mujoco,pettingzoo,tracing,video]' --editable 'client/hosts/python[dm-env-rpc,openenv]' --editable conformance --group dev --group docs
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := help
.PHONY: help setup setup-client demo demo-cpp demo-go demo-java demo-typescript test test-slow test-clients test-bridges coverage check schemas docs docs-clients docs-serve test-compose chaos soak fuzz bench bench-peers bench-clients bench-learning conformance protos blocking scopes walks manifest serve lock audit sbom release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z. -]+:.*## / { printf "make %-32s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make a virtual environment with everything: 3.0 GB, in one to ten minutes

setup-client: $(VENV)-client/ready ## make a virtual environment with the client alone, in .venv-client: 160 MB

$(VENV)-client/ready: constraints.txt client/pyproject.toml
	$(PYTHON) -m venv $(VENV)-client
	$(VENV)-client/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt pip
	$(VENV)-client/bin/pip install --disable-pip-version-check --constraint constraints.txt \
		--build-constraint constraints.txt --editable 'client[compression,top]'
	@touch $@

$(READY): .ci/helm.py constraints.txt pyproject.toml client/pyproject.toml server/pyproject.toml conformance/pyproject.toml client/hosts/python/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	@# Debian packs the module that makes virtual environments separately.
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(SUDO) apt-get -qq update && $(SUDO) apt-get -qq install -y python3-venv; } \
		|| { echo 'Python cannot make virtual environments: apt-get install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt pip
	@echo 'Installing the server, the client and all tools into $(VENV): 3.0 GB, in one to ten minutes.'
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--build-constraint constraints.txt $(PACKAGES)
	$(BIN)/python .ci/helm.py
	@touch $(READY)

demo: $(READY) ## start a server and learn CartPole through it
	$(BIN)/python examples/cartpole.py

demo-cpp demo-go demo-java demo-typescript: demo-%: $(READY) ## start a server and learn CartPole through the client for that language
	$(MAKE) -C client/$* setup build
	$(BIN)/python -m rollserve_server.testing --env CartPole-v1 -- sh -c 'make --no-print-directory -C client/$* demo TARGET=$$ROLLSERVE_TARGET'

# Three at a time on two cores, because tests often wait for processes to start, stop or time out.
# Hundreds of processes import the same modules: compiled once, they take half as long, whatever the environment says.
test test-slow: export PYTHONDONTWRITEBYTECODE :=
test: $(READY) ## run the tests, three at a time, without the slow ones
	$(BIN)/pytest --numprocesses 3 --dist loadgroup -m 'not slow'

test-slow: $(READY) ## run the slow tests: chaos, benchmarks, limits of the machine
	$(BIN)/pytest --numprocesses 3 --dist worksteal -m slow

test-clients: $(READY) ## build and test the clients in other languages; CLIENTS=go for one
	.ci/test-clients $(CLIENTS)

# Processes that are killed in the middle of writing leave files that cannot be combined.
coverage: $(READY) ## run the tests, and print how much of each package they run; takes half as long again as `make test`
	rm -rf build/coverage
	mkdir -p build/coverage
	status=0; $(BIN)/coverage run -m pytest --numprocesses 3 --dist loadgroup -m 'not slow' $(OPTIONS) || status=$$?; \
		$(BIN)/coverage combine --quiet; \
		$(BIN)/coverage json --quiet -o build/coverage/report.json && $(BIN)/python .ci/coverage_table.py build/coverage/report.json && exit $$status

# In an environment of its own, because frameworks take gigabytes. The version of torch is the one of `make bench-peers`.
$(VENV)-bridges/ready: client/pyproject.toml server/pyproject.toml pyproject.toml
	$(PYTHON) -m venv $(VENV)-bridges
	$(VENV)-bridges/bin/pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(VENV)-bridges/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 \
		--editable 'client[arrow,data,jax,pandas,plot,rllib,sb3,torch,torchrl]' --editable 'server[atari,mujoco]' --group dev
	@# RLlib names an older gymnasium than the server's workers run with; its episodes and batches work with the newer one.
	$(VENV)-bridges/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gymnasium
	@touch $@

test-bridges: $(VENV)-bridges/ready ## test bridges to PyTorch, TorchRL, RLlib, Stable-Baselines3, JAX, pandas and Arrow
	$(VENV)-bridges/bin/pytest tests/bridges tests/project/test_typed_code.py $(OPTIONS)

check: $(READY) schemas ## check format, lint, types, protos, schemas and what is generated
	$(BIN)/python client/blocking.py --check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/buf lint
	for image in tests/compatibility/*.binpb; do $(BIN)/buf breaking protos --against $$image || exit 1; done
	rm -rf $(VENV)/generated
	mkdir -p $(VENV)/generated
	protos/generate.sh $(VENV)/generated
	for folder in v1 rows/v1; do \
		diff -r -x __init__.py -x __pycache__ $(VENV)/generated/rollserve_wire/$$folder client/src/rollserve_wire/$$folder || exit 1; \
	done
	protos/generate_host.sh $(VENV)/generated
	diff -r -x __init__.py -x __pycache__ $(VENV)/generated/rollserve_env_host/messages client/hosts/python/src/rollserve_env_host/messages
	diff $(VENV)/generated/rollserve_wire/reasons.py client/src/rollserve_wire/reasons.py
	$(BIN)/python protos/column_tables.py $(VENV)/generated/clients
	for file in $$(cd $(VENV)/generated/clients && find . -type f); do diff $(VENV)/generated/clients/$$file client/$$file || exit 1; done

schemas: $(READY) ## check the files of GitHub, Docker Compose and CITATION.cff against their schemas, which need no network
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/wish.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

docs: $(READY) ## build the site into build/site; a broken link or an undocumented name is an error
	mkdir -p build/pages
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site -d build/doctrees build/pages build/site

docs-clients: ## write the references of the other clients into build/site, for links of `make docs`; installs their tools
	for language in cpp java typescript; do \
		$(MAKE) -C client/$$language docs DESTINATION=$(CURDIR)/build/site/reference/$$language || exit 1; done

docs-serve: docs ## show the site at http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

test-compose: $(READY) ## run and disturb the containers of docker-compose.yml, in a quarter of an hour; needs Docker
	PYTHONPATH=tests $(BIN)/python -m containers $(OPTIONS)

chaos: $(READY) ## inject faults of all kinds for ten minutes, and compare every result; SECONDS=60 OPTIONS='--seed 3'
	PYTHONPATH=tests/helpers:tests $(BIN)/python -m faults.chaos --seconds $(or $(SECONDS),600) $(OPTIONS)

soak: $(READY) ## watch for an hour what grows under a steady load; SECONDS=600 for less
	PYTHONPATH=tests/helpers:tests $(BIN)/python -m faults.soak --seconds $(or $(SECONDS),3600) $(OPTIONS)

fuzz: $(READY) ## send a hundred thousand malformed requests; COUNT=1000 for fewer
	PYTHONPATH=tests/helpers:tests $(BIN)/python -m faults.fuzzing --count $(or $(COUNT),100000) $(OPTIONS)

bench: $(READY) ## measure the whole service, in some minutes; WORKLOADS=w1,w5 for a part
	$(BIN)/python -m benchmarks.service $(if $(WORKLOADS),--workloads $(WORKLOADS)) $(OPTIONS)

bench-peers: $(READY) ## compare with other libraries, in half an hour; PEERS=torchrl,rllib for a part
	$(BIN)/python -m benchmarks.peers $(if $(PEERS),--peers $(PEERS)) $(if $(WORKLOADS),--workloads $(WORKLOADS)) $(OPTIONS)

bench-clients: $(READY) ## compare the clients of all languages; CLIENTS=python,go for some
	$(BIN)/python -m benchmarks.clients $(if $(CLIENTS),--clients $(CLIENTS)) $(OPTIONS)

bench-learning: $(READY) $(VENV)-bridges/ready ## measure the time to learn, beside other libraries, in some minutes; TASKS=cartpole,pendulum
	$(BIN)/python -m benchmarks.learning $(if $(TASKS),--tasks $(TASKS)) $(OPTIONS)

conformance: $(READY) ## run the conformance kit with all clients, and print what each passes
	PYTHONPATH=tests/helpers $(BIN)/python -m conformance_table

protos: $(READY) ## generate the Python classes of the protos, and the clients' tables of columns
	protos/generate.sh client/src
	protos/generate_host.sh client/hosts/python/src
	$(BIN)/python protos/column_tables.py client

blocking: $(READY) ## generate the client's modules that block from those for asyncio
	$(BIN)/python client/blocking.py

scopes: $(READY) ## write the table of scopes in docs/access.md from a server's answers
	PYTHONPATH=tests/helpers $(BIN)/python -m scope_table

walks: $(READY) ## make calls, and write which modules they pass into docs/walks.md
	PYTHONPATH=tests/helpers $(BIN)/python -m walks

manifest: $(READY) ## write deploy/kubernetes/rollserve.yaml from the chart in deploy/helm
	mkdir -p build
	deploy/kubernetes/manifest.sh $(BIN)/helm > build/manifest.yaml
	mv build/manifest.yaml deploy/kubernetes/rollserve.yaml

serve: $(READY) ## serve CartPole at 127.0.0.1:50051; OPTIONS='--env …' for something else
	$(BIN)/rollserve-server $(or $(OPTIONS),--env CartPole-v1)

lock: ## write constraints.txt with the newest versions that the projects allow
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet --upgrade pip hatchling
	$(VENV)-lock/bin/pip install --quiet $(PACKAGES)
	{ sed -n '/^#/p' constraints.txt; $(VENV)-lock/bin/pip freeze --all --exclude-editable --exclude setuptools; } \
		> constraints.new
	mv constraints.new constraints.txt
	rm -rf $(VENV)-lock
	$(MAKE) requirements.lock

requirements.lock: constraints.txt client/pyproject.toml server/pyproject.toml ## write the hashes of the images' packages, also for GPUs
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet uv
	deploy/lock.sh $(VENV)-lock/bin/uv
	rm -rf $(VENV)-lock

# In an environment of its own: what it needs is no part of the project.
$(VENV)-audit/ready:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check 'pip-audit>=2.7,<3' 'cyclonedx-bom>=7,<8'
	@touch $@

audit: $(VENV)-audit/ready ## look for known vulnerabilities of all dependencies
	.ci/audit $(VENV)-audit/bin/python

sbom: $(READY) $(VENV)-audit/ready ## write sbom.json, the bill of materials of all distributions
	$(VENV)-audit/bin/python .ci/sbom.py $(BIN)/python sbom.json

release: $(READY) ## change the version, and build all artefacts into dist; VERSION=0.3.0 PARTS='python cpp' for some; publishes nothing
	$(BIN)/python .ci/release.py '$(VERSION)' $(PARTS)

clean: ## remove everything that the other targets make
	rm -rf $(VENV) .venv-protos .venv-peers .venv-audit .venv-bridges .venv-client sbom.json .mypy_cache .pytest_cache .ruff_cache .hypothesis demo.png demo-server.log \
		bench.json bench.png bench-peers.json bench-peers.png bench-clients.json bench-clients.png bench-learning.json bench-learning.png batch.npz MUJOCO_LOG.TXT chaos-run compose-run soak-run fuzz-run build dist
	for file in client/*/Makefile client/hosts/*/Makefile; do $(MAKE) -s -C "$$(dirname "$$file")" clean; done
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
