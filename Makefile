# SPDX-License-Identifier: Apache-2.0
# The two commands of the README; each sets up what it needs. Everything else is a part of them.
.PHONY: demo test test-engine setup lint unit lock clean help

demo: ## set up, then provision, serve and benchmark in the laboratory, and leave it running
	@RACKWELL_SETUP=demo scripts/setup
	@scripts/demo

test: ## set up, then pass all tests
	@scripts/setup
	@scripts/test

test-engine: ## the real SGLang on a processor, under rackwell's unit (25 GB of disk; docs/engine.md)
	@scripts/setup
	@scripts/test-engine

setup: ## only set up
	@scripts/setup

lint: ## ruff, mypy, ansible-lint
	@scripts/test lint

unit: ## the tests that need no laboratory
	@scripts/test unit

lock: ## renew requirements/*.lock from pyproject.toml
	.venv/bin/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate pyproject.toml -o requirements/run.lock
	.venv/bin/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --group dev pyproject.toml -o requirements/dev.lock

clean: ## stop and remove the laboratory's instances demo and test (its cache stays)
	@python3 tests/lab/lab.py down --purge --name test
	@python3 tests/lab/lab.py down --purge --name demo

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
