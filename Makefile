# Targets for developers and .ci/run. Targets that run Python first create .venv from pinned versions.

VENV := .venv
PYTHON := $(VENV)/bin/python
NAME ?= churn
ENGINE ?= local
EXTRAS := otel,msgpack,avro,protobuf,postgresql,redis,testing
ROOM ?=
VERSION ?= 5.5.0
ifneq (,$(filter campaign nightly,$(firstword $(MAKECMDGOALS))))  # `make campaign churn` is `make campaign NAME=churn`
ifneq (,$(word 2,$(MAKECMDGOALS)))
NAME := $(word 2,$(MAKECMDGOALS))
PARTS := $(wordlist 2,99,$(MAKECMDGOALS))
.PHONY: $(PARTS)
$(PARTS): ; @:
endif
endif

# Cached bytecode halves the time for collecting the tests, but some images disable it with this variable.
unexport PYTHONDONTWRITEBYTECODE

# A test run ends with the make that started it, even if make is killed: tests/run_guard.py.
ifndef RMQD_TEST_ENDS_WITH
export RMQD_TEST_ENDS_WITH := $(shell echo $$PPID)
endif

.DEFAULT_GOAL := help
.PHONY: help venv spark demo unit slow test nightly check format dist site bench bench-spark simulate campaign conformance peer-tests

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.installed ## create .venv (Python 3.11 or later), or name missing packages

# Each interpreter is checked, because a name on PATH may be a stub or an older Python. Debian's `python3 -m venv` lacks
# ensurepip until python3-venv is installed.
$(VENV)/.installed: pyproject.toml handlers/pyproject.toml constraints.txt rmqd/wire/native.c
	@for name in python3.13 python3.12 python3.11 python3; do \
		$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && python=$$name && break; \
	done; \
	[ -n "$$python" ] || { echo "rmqd needs Python 3.11 or later (Debian 12: apt-get install python3 python3-venv)" >&2; exit 1; }; \
	$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
		$$python -c 'import venv, ensurepip' 2>/dev/null || \
			{ echo "$$python has no venv module: apt-get install python3-venv" >&2; exit 1; }; \
		rm -rf $(VENV) && $$python -m venv $(VENV); }
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PYTHON) -m pip install --quiet \
		--disable-pip-version-check 'pip>=25.1' # the first with dependency groups
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PYTHON) -m pip install --quiet \
		--disable-pip-version-check --group dev --editable '.[$(EXTRAS)]' --editable 'handlers[all]'
	@$(PYTHON) -m compileall -q rmqd handlers # an editable install does not compile, which delays the first start
	@touch $@

spark: $(VENV)/.spark ## add PySpark and a Java runtime to .venv; downloads 600 MB

$(VENV)/.spark: $(VENV)/.installed
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PYTHON) -m pip install --quiet \
		--disable-pip-version-check --editable '.[spark]'
	@touch $@

$(VENV)/.fuzz $(VENV)/.dist $(VENV)/.site: $(VENV)/.%: $(VENV)/.installed
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PYTHON) -m pip install --quiet \
		--disable-pip-version-check --group $*
	@touch $@

# Ctrl-C interrupts the foreground process group. `set -m` makes rmqd that group, so that make reports no failure.
demo: $(if $(filter spark,$(ENGINE)),spark,venv) ## run RocketMQ, producer and rmqd; ENGINE=spark; ARGS="--seconds 30"
	@if [ -t 0 ]; then set -m; fi; $(VENV)/bin/rmqd demo --engine $(ENGINE) $(ARGS)

# Excludes tests/slow.txt and folders whose tests all start processes. `make check` tests the import rules.
# With a debugger: ARGS="--forks 0 --pdb".
UNIT := -q -n 0 -m 'not process and not rocketmq and not spark and not slow' $(addprefix --ignore tests/,test_architecture.py smoke integration conformance)

unit: venv ## run the quick tests that start no process; one folder: make unit ROOM=consumer/pull
	$(PYTHON) -m pytest $(UNIT) --forks 3 --hypothesis-profile unit $(addprefix tests/,$(ROOM)) $(ARGS)

slow: venv ## find the tests that make unit excludes, to tests/slow.txt
	$(PYTHON) -m pytest $(UNIT) --list-slow --hypothesis-profile unit

# loadgroup keeps all tests with a real RocketMQ on one worker, so they share one broker; same for Spark.
test: venv ## run all tests, ROOM=wire or ARGS="tests/wire -x"; RocketMQ needs Java and Maven, Spark needs make spark
	$(PYTHON) -m pytest -n auto --dist loadgroup $(addprefix tests/,$(ROOM)) $(ARGS)

nightly: spark $(VENV)/.fuzz $(VENV)/.site ## the heavy tests, to docs/proof/README.md: all parts, or make nightly spark planted; an interrupted run resumes
	$(PYTHON) -m tests.nightly $(PARTS) $(ARGS)

check: spark ## lint, formatting, types and the import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy rmqd handlers tests bench docs
	$(PYTHON) -m pytest -q tests/test_architecture.py

format: venv ## fix imports and formatting
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

# Each Python gets a new environment with the wheels alone, runs the demo, and tests a new project.
dist: $(VENV)/.dist ## build wheels and sdists in dist/, and test them with each installed Python
	rm -rf dist
	for folder in . handlers; do $(PYTHON) -m build --outdir dist $$folder || exit; done
	$(PYTHON) -m twine check --strict dist/*
	@set -e; dist=$$PWD/dist; for name in python3.11 python3.12 python3.13 python3.14; do \
		$$name -c 'import ensurepip' 2>/dev/null || { echo "$$name: not here, not tried"; continue; }; \
		folder=$$(mktemp -d); $$name -m venv $$folder/env; \
		$$folder/env/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl pytest; \
		(cd $$folder; env/bin/rmqd demo --seconds 5 >demo.txt; tail -n 3 demo.txt; \
			env/bin/rmqd new handler order-book --wheels $$dist; \
			env/bin/pip install --quiet --disable-pip-version-check ./order-book; cd order-book; ../env/bin/pytest -q); \
		rm -rf $$folder; echo "$$name: installed, demo and tests of a new project passed"; done

site: $(VENV)/.site ## build the website in site/; dead links fail. Read it: python3 -m http.server -d site
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

bench: venv ## rmqd against the Java and Go clients and the broker's limit: docs/proof/benchmarks.md
	$(PYTHON) -m bench $(ARGS)

bench-spark: spark ## Spark, raw puller, Kafka source, mapInArrow and a bare micro-batch: docs/proof/benchmarks.md
	$(PYTHON) -m bench.spark_source $(ARGS)

simulate: venv ## histories of groups and brokers that break, on simulated hosts; ARGS="--seed 1 --timeline", or --count, --seconds, --shrink, --planted
	$(PYTHON) -m tests.nightly.simulation $(if $(ARGS),$(ARGS),--count 1000000 --seconds 60)

campaign: $(if $(filter fuzz,$(NAME)),$(VENV)/.fuzz,venv) ## a long run with faults: make campaign alerts, churn, orderly, owners, faults, durability, dlq_replay, fuzz, grow, handlers, histories, simulation, planted, mutants, pop, spark_moves, spark_kills, spark_tables, spark_cluster, spark_connect
	$(PYTHON) -m tests.nightly.campaigns $(NAME) $(ARGS)

conformance: venv ## compare behaviour with Java's, to docs/proof/conformance.md; VERSION=embedded, or 4.9.7
	RMQD_TEST_ROCKETMQ=$(VERSION) $(PYTHON) -m pytest -o norecursedirs='.*' --conformance -m behaviour $(ARGS)

peer-tests: venv ## RocketMQ's own tests on the embedded broker, to docs/proof/rocketmq-tests.md; ARGS="--real": on a real RocketMQ
	$(PYTHON) -m tests.nightly.apache_tests $(ARGS)
