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

# Most tests wait more than they compute, so there are two processes for each core; a real engine wants the machine for
# itself. Both parts run, whatever becomes of the first.
test: lint
	@$(VENV)/python -m engine_host.demo.model >/dev/null
	@trap 'exit 130' INT; \
	many=$$($(VENV)/python -c 'import os; print(min(8, 2 * len(os.sched_getaffinity(0))))'); \
	$(VENV)/python -m pytest --ignore=tests/e2e -n $$many --dist worksteal; beside=$$?; \
	$(VENV)/python -m pytest tests/e2e --durations=20 --durations-min=5; alone=$$?; \
	verdict() { if [ $$1 -eq 0 ]; then echo passed; else echo "FAILED, exit code $$1"; fi; }; \
	echo "without an engine: $$(verdict $$beside); end to end: $$(verdict $$alone)"; \
	[ $$beside -eq 0 ] && [ $$alone -eq 0 ]

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
