# Everything runs in the active environment: python -m pip install -e '.[dev]'
PYTHON ?= python

.PHONY: check lint types imports test format bench

check: lint types imports
	$(PYTHON) -m pytest --cov --cov-report=term

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

imports:
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

test:
	$(PYTHON) -m pytest

format:
	$(PYTHON) -m ruff check --fix-only .
	$(PYTHON) -m ruff format .

bench:
	$(PYTHON) -m benchmarks
