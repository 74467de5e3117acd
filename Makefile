# Every target installs what it needs into .venv; nothing outside this directory is touched.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# What the demo needs, a third of all: the first look waits for no more.
DEMO_STAMP := .venv/.installed-demo
PYTEST := $(BIN)/pytest
WORKERS ?= 2
# Of `make soak`: minutes for all parts together, parts (all if empty), and what to repeat.
MINUTES ?= 60
PARTS ?=
SEED ?=
ROUND ?=
CONNECT := SPARK_SESSION=connect $(PYTEST) -n $(WORKERS) --dist worksteal -m
# What test-ci runs of the tests that take turns (tests/families.py): a part for each commit. A clone
# without the history of commits counts days.
EXHAUSTIVE_TURN ?= $(or $(shell [ "$$(git rev-parse --is-shallow-repository 2>/dev/null)" = false ] && git rev-list --count HEAD),$(shell expr $$(date +%s) / 86400))
SAIL := SPARK_SESSION=sail $(PYTEST) -n $(WORKERS) --dist worksteal tests/conformance
LEFT_OUT := soak or browser or exhaustive or slow or delta_spark
WITHOUT_TABLES := GOLDEN_TABLES=$(CURDIR)/build/no-tables $(PYTEST) -n $(WORKERS) --dist worksteal -m "not ($(LEFT_OUT))"
WITH_GOLDEN := grep -rliE golden tests --include='test_*.py' | sort

# Without bytecode each of the many processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-python test-ci test-all soak test-spark test-connect test-sail test-without-tables emulators lint format audit bench ui docs site clean-environment matrix release screenshots lock clean check-python check-java

help:
	@echo "make demo         run the demo pipeline on real data, on local Spark"
	@echo "make test         run the tests, but for those that take long"
	@echo "make test-python  run those of them that ask for no Spark session: no Java is needed"
	@echo "make test-ci      run make test and a part of what it leaves out, by turns; the browser tests, Connect and Sail"
	@echo "make test-all     run every test, a short soak run, make test-connect and make test-sail"
	@echo "make soak         attack tables for an hour: MINUTES=5, PARTS=crash,s3, SEED=7, ROUND=0"
	@echo "make test-spark   run only the tests that need Spark"
	@echo "make test-connect run what Spark Connect may do differently, with sessions of Connect"
	@echo "make test-sail    run the conformance tests on Sail, a Connect server without a JVM"
	@echo "make test-without-tables  run what reads golden tables on a machine that has none"
	@echo "make emulators    install the servers of clouds that tests run, but for MinIO"
	@echo "make lint         style, types and layers"
	@echo "make audit        known vulnerabilities of the locked dependencies"
	@echo "make bench        benchmarks, side by side with their peers"
	@echo "make ui           open the demo in the Dagster UI"
	@echo "make docs         regenerate tables of docs/ and the API reference in docs/api"
	@echo "make site         build the documentation site into build/site; broken links are errors"
	@echo "make clean-environment  install the wheel into an empty environment, and follow the tutorial"
	@echo "make matrix       run a selection of the tests with the oldest and newest versions allowed"
	@echo "make screenshots  take the pictures in docs/images again, with chromium"
	@echo "make release      make, try and tag a release: VERSION=0.2.0"

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: $(PYTHON) is not Python 3.11 or newer: install one and call make PYTHON=python3.11" >&2; exit 1; }

check-java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${version:-0}" -ge 17 ] || { \
		echo "error: Spark needs Java 17 or newer, found $${version:-none}: install a JDK (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME" >&2; exit 1; }

$(BIN)/python: | check-python
	@$(PYTHON) -m venv .venv || { \
		echo "error: $(PYTHON) cannot make a virtual environment (Debian: apt-get install python3-venv)" >&2; exit 1; }

$(DEMO_STAMP): requirements-dev.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements-dev.lock --editable ".[demo]" deltalake
	@touch $@

$(STAMP): requirements-dev.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

install: $(STAMP)

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP)) check-java
	XDG_CACHE_HOME=$(CURDIR)/.cache PYTHONPATH=$(CURDIR) $(BIN)/python examples/flights/demo.py

test: $(STAMP) check-java
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not ($(LEFT_OUT))"

test-python: $(STAMP)
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not ($(LEFT_OUT) or spark)"

# A machine without golden tables: the tests that read them skip, and no other test of these files fails. CI only sets them up.
test-without-tables: $(STAMP) check-java
	$(WITHOUT_TABLES) $$($(WITH_GOLDEN))

test-ci: export EXHAUSTIVE_TURN := $(EXHAUSTIVE_TURN)

# What fails on Connect must not hide what fails elsewhere, and the summary of most tests comes last.
test-ci: $(STAMP) check-java
	$(CONNECT) "spark and not delta_spark and (drawn or not (exhaustive or slow))"; on_connect=$$?; $(SAIL); on_sail=$$?; \
		$(WITHOUT_TABLES) -m "not ($(LEFT_OUT) or spark)" --setup-only --quiet $$($(WITH_GOLDEN)); without=$$?; \
		$(PYTEST) -n $(WORKERS) --dist worksteal -m "not soak and (drawn or not (exhaustive or slow or delta_spark))" && exit $$((on_connect | on_sail | without))

test-all: $(STAMP) check-java
	$(CONNECT) "spark and not delta_spark"; on_connect=$$?; $(SAIL); on_sail=$$?; \
		$(PYTEST) -n $(WORKERS) --dist worksteal && exit $$((on_connect | on_sail))

soak: $(STAMP)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --parts "$(PARTS)" \
		$(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND))

test-spark: $(STAMP) check-java
	$(PYTEST) -m spark

test-connect: $(STAMP) check-java
	$(CONNECT) "spark and not delta_spark"

test-sail: $(STAMP)
	$(SAIL)

# Where tests/storage/emulators.py looks for them. MinIO takes minutes to compile.
emulators: .cache/azurite/node_modules/.bin/azurite-blob .cache/go/bin/gofakes3

.cache/azurite/node_modules/.bin/azurite-blob:
	mkdir -p .cache/azurite
	npm install --prefix .cache/azurite --no-package-lock --no-audit --no-fund --silent azurite@3.35.0

# Later versions know conditions.
.cache/go/bin/gofakes3:
	GOBIN=$(CURDIR)/.cache/go/bin go install github.com/johannesboyne/gofakes3/cmd/gofakes3@v0.0.0-20240217095638-c55a48f17be6

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

audit: $(STAMP)
	$(BIN)/python .ci/audit.py

bench: $(STAMP) check-java
	$(BIN)/python -m benchmarks

ui: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP)) check-java
	@mkdir -p .demo/home
	XDG_CACHE_HOME=$(CURDIR)/.cache DAGSTER_HOME=$(CURDIR)/.demo/home $(BIN)/dg dev -w workspace.yaml

docs: $(STAMP)
	$(BIN)/python -m docs.features
	$(BIN)/python -m docs.programs
	$(BIN)/python -m docs.reference

# The check for links to nothing is that of mkdocs.yml, which is strict.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

# The wheel in an empty environment, with the commands of the README and the tutorial.
clean-environment: $(STAMP) build/uv
	rm -rf dist/check && build/uv/bin/uv build --quiet --wheel --out-dir dist/check
	$(BIN)/python .ci/clean_environment.py dist/check/*.whl

# ENVIRONMENTS are names of .ci/matrix.py, each in quotes; all if empty.
matrix: check-java build/uv
	PATH="$(CURDIR)/build/uv/bin:$$PATH" $(PYTHON) .ci/matrix.py --write $(ENVIRONMENTS)

release: check-python build/uv
	PATH="$(CURDIR)/build/uv/bin:$$PATH" $(PYTHON) .ci/release.py $(VERSION)

build/uv: | check-python
	$(PYTHON) -m venv build/uv && build/uv/bin/python -m pip install --quiet uv

screenshots: $(STAMP)
	DAGSTER_DELTA_SCREENSHOTS=$(CURDIR)/docs/images $(PYTEST) -m browser
	! command -v pngquant >/dev/null || pngquant --force --ext .png --quality 70-95 docs/images/*.png

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --group dev --group docs --extra s3 --extra gcs --extra azure --extra hdfs --extra polars \
		--extra connect --extra demo --universal --python-version 3.11 --no-emit-index-url \
		--no-emit-find-links --no-header --no-annotate --quiet --upgrade -o requirements-dev.lock

clean:
	rm -rf .venv build dist .cache .demo .soak .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
