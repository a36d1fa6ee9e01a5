# Every target does its own set-up: on a fresh machine with Python 3.11 or newer, `make demo` or `make test` is enough.
# ARGS is handed on: make test ARGS="tests/core -x"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

ARGS ?=
PROCESSES ?= 3
BENCH ?= $(filter-out __init__ common streaming_common soak soak_common soak_cluster attack fuzz simulate fuzz_files plan_edits plan_programs poisoned,$(basename $(notdir $(wildcard benchmarks/*.py))))
RUN := scripts/run
TESTS := scripts/in_memory $(RUN) python -m pytest -n $(PROCESSES) --dist loadfile

.PHONY: help setup demo examples dev quick change test nightly mutants platforms lowest versions lint types format reference docs wheel ci bench compare soak attack fuzz sim fuzz-files specs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## Create .venv and install the project with everything it can use
	@scripts/bootstrap python

demo: ## Run the reference deployment through a failure, a savepoint and a restore, and compare with the truth
	@scripts/bootstrap python java class_archive
	@$(RUN) python -m assets.demo $(ARGS)

examples: ## Run the examples beside a Kafka of their own, and check what they wrote
	@CI=true scripts/bootstrap python java kafka spark_kafka
	@$(RUN) python -m examples.clickstream

dev: ## Open Dagster's UI on the reference deployment (state below .demo/)
	@scripts/bootstrap python java class_archive
	@mkdir -p .demo/dagster_home && touch .demo/dagster_home/dagster.yaml
	@DAGSTER_HOME="$$PWD/.demo/dagster_home" $(RUN) dagster dev -w workspace.yaml $(ARGS)

# JAVA_HOME leads nowhere: a test that starts a JVM without saying so fails.
quick: ## Run the tests that need Python alone, in five minutes on two cores: before each commit
	@scripts/bootstrap python
	@scripts/in_memory $(RUN) env JAVA_HOME=/no/java python -m pytest -n 2 --dist loadfile -m quick --hypothesis-profile=quick $(ARGS)

test: ## Run the tests, in three processes with a Spark session each (PROCESSES=0: in this one); ARGS: set-up is for them
	@scripts/bootstrap python
	@scripts/bootstrap $$($(RUN) python -m scripts.needs $(ARGS))
	@$(TESTS) $(ARGS)

change: ## Run the tests of a change: without those of extensions that it does not touch
	@scripts/bootstrap python
	@$(MAKE) test ARGS="$$($(RUN) python -m scripts.change) $(ARGS)"

nightly: ## Run the tests with what `make test` leaves out: every point of every sweep, the rest of clusters and Spark projects
	@scripts/bootstrap python
	@scripts/bootstrap $$($(RUN) python -m scripts.needs $(ARGS))
	@SWEEP=all scripts/in_memory $(RUN) python -m pytest -n $(PROCESSES) --dist loadfile -m 'not platform' $(ARGS)

mutants: ## Put fifty-nine faults back, one by one, in a copy: the tests find each
	@scripts/bootstrap python java class_archive plain_files
	@scripts/in_memory $(RUN) python -m scripts.mutants $(ARGS)

platforms: ## Run the tests on emulators of Azure and Google, YARN and Kubernetes, installed first (weekly in CI)
	@CI=true scripts/bootstrap python java postgres clouds azurite spark_azure spark_google hadoop kubernetes iceberg_rest
	@CI=true $(RUN) python -m pytest -m platform tests/contract tests/platforms $(ARGS)

LOWEST := tests/core tests/contract/test_coordinator_store.py tests/spark/epoch/test_programs.py tests/spark/snapshot/test_restore.py tests/ext/metrics tests/dagster/launched/test_messages.py
lowest: ## Run tests of each layer with the oldest versions that are declared (ARGS: other tests)
	@scripts/lowest -q $(if $(ARGS),$(ARGS),$(LOWEST))

versions: ## Run the tests of attached programs on Spark 3.5, 4.0, 4.1 and 4.2 (VERSIONS=...; weekly in CI)
	@scripts/bootstrap python java
	@scripts/versions -q $(if $(ARGS),$(ARGS),tests/ext/attach)

lint: ## Check style, formatting and spelling
	@scripts/bootstrap python
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) python -m codespell_lib $$(git ls-files '*.py' '*.md' '*.toml' Makefile scripts ':!*.sum')

types: ## Check types
	@scripts/bootstrap python
	@$(RUN) mypy

format: ## Repair style and formatting
	@scripts/bootstrap python
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

reference: ## Write the reference pages that are made from the code
	@scripts/bootstrap python
	@$(RUN) python -m scripts.python_reference
	@$(RUN) python -m tests.cli.reference_page
	@$(RUN) python -m scripts.capabilities
	@$(RUN) python -m scripts.glossary

docs: ## Build the site of docs/ into build/site, every link of it checked
	@scripts/bootstrap python
	@NO_MKDOCS_2_WARNING=1 $(RUN) python -m mkdocs build --strict --quiet $(ARGS)

wheel: ## Build the wheel, list what it installs, import it in a clean interpreter
	@scripts/bootstrap python
	@$(RUN) python -m scripts.wheel dist

# Pytest's 1: all tests were run, and some failed.
ci: lint types docs ## Everything that must hold before a change is merged; up to three failed tests get a second run, alone
	@scripts/bootstrap $$($(RUN) python -m scripts.needs)
	@rm -f .pytest_cache/v/cache/lastfailed
	@$(TESTS) || { [[ $$? == 1 ]] && scripts/in_memory $(RUN) python -m scripts.again; }
	@$(MAKE) wheel

bench: ## Run the benchmarks, or one: make bench BENCH=capture
	@scripts/bootstrap python java postgres
	@for name in $(BENCH); do $(RUN) python -m "benchmarks.$$name" $(ARGS); done

compare: ## Measure against bare Spark and Flink on the same files, and draw docs/images/comparison.svg
	@scripts/bootstrap python java flink
	@$(RUN) python -m benchmarks.comparison --chart docs/images/comparison.svg $(ARGS)

soak: ## Stream for ten minutes under random kills and storage faults (ARGS=--cluster: of machines), then compare with the truth
	@scripts/bootstrap python java postgres spark_s3
	@$(RUN) python -m benchmarks.soak $(ARGS)

attack: ## Put back, lose and swap what pipelines keep, hundreds of times: tables stay exact, or nothing runs
	@scripts/bootstrap python
	@$(RUN) python -m benchmarks.attack $(ARGS)

fuzz: ## Draw pipelines and what happens to them from seeds, and compare their tables with a model in plain Python
	@scripts/bootstrap python java class_archive
	@$(RUN) python -m benchmarks.fuzz $(ARGS)

sim: ## Play runs, stores, storages and tables on one seeded scheduler, under kills, suspensions, lost messages and faults
	@scripts/bootstrap python
	@$(RUN) python -m benchmarks.simulate $(ARGS)

fuzz-files: ## Change files that are read from storage at random: each is read, or told as damage in a sentence
	@scripts/bootstrap python
	@$(RUN) python -m benchmarks.fuzz_files $(ARGS)

specs: ## Check the models in specs/, and that a named invariant finds each guard that is switched off (weekly in CI)
	@scripts/bootstrap python java specs
	@$(RUN) python -m scripts.specs $(ARGS)

clean: ## Remove what the other targets made, except .venv
	@rm -rf .demo dist build artifacts .pytest_cache .hypothesis .mypy_cache .ruff_cache spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
