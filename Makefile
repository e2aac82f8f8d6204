# Two commands: `make demo` and `make test`. Everything they need is made on the way, in .venv and the user's cache.

PYTHON ?= python3
VENV := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean
export DEMO_SECONDS

help:  ## Show what there is
	@echo "make demo                  a live console on a real vLLM engine under load; q ends it and its host"
	@echo "make demo DEMO_SECONDS=20  the same without a terminal: prints one status as JSON"
	@echo "make test                  everything: lint, types, unit tests, end to end on a real engine"
	@echo "make lint                  only ruff, mypy and the import rules"
	@echo "make bench                 engine-host against plain vLLM, about ten minutes"
	@echo "make clean                 remove .venv and build leftovers; the model in the user's cache stays"

demo:
	@$(PYTHON) -m engine_host.demo.install demo
	@exec $(VENV)/python -m engine_host.demo.run

test: lint
	@$(VENV)/python -m engine_host.demo.model >/dev/null
	@$(VENV)/python -m pytest

lint:
	@$(PYTHON) -m engine_host.demo.install demo dev
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports

bench:
	@$(PYTHON) -m engine_host.demo.install demo dev
	@$(VENV)/python -m engine_host.demo.model >/dev/null
	@$(VENV)/python tests/benchmarks/serve_overhead.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
