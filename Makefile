# Everything runs in the active environment: python -m pip install -e '.[dev]'
PYTHON ?= python

.PHONY: check lint types imports quick test full format bench

check: lint types imports
	$(PYTHON) -m pytest --cov --cov-report=term

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

imports:
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

# Three sizes of the tests; CONTRIBUTING.md says when to run which.
quick:
	$(PYTHON) -m pytest tests/unit tests/contract

test:
	$(PYTHON) -m pytest

full:
	$(PYTHON) -m pytest --full

format:
	$(PYTHON) -m ruff check --fix-only .
	$(PYTHON) -m ruff format .

bench:
	$(PYTHON) -m benchmarks
