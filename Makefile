# The commands of the project; CI calls only these. tools/setup.sh prepares what a target needs, tools/test.sh runs the
# legs of the tests. Everything made lies in the repository.

PYTHON ?= python3
PYTEST_ARGS ?=
export PYTHON PYTEST_ARGS
run := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test lint test-main test-sync test-stock bench docs wheel clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '%-12s %s\n' "$$target" "$$text"; done

setup:  ## install what is missing: system packages (root or sudo), .venv, kp, kernels
	@tools/setup.sh demo

setup-test:  ## the same, with the validation layer and the tests' two drivers
	@tools/setup.sh test

demo: setup  ## train iris data-parallel on every Vulkan device, or on the CPU
	@$(run) examples/dp_iris.py

test: setup-test  ## run every check: lint, test-main, test-sync, test-stock
	@tools/test.sh lint main sync stock

lint: setup  ## ruff and mypy --strict
	@tools/test.sh lint

test-main: setup-test  ## the tests on the CPU and on two Vulkan drivers
	@tools/test.sh main

test-sync: setup-test  ## the Vulkan tests under synchronization validation
	@tools/test.sh sync

test-stock: setup-test  ## the engine on kp without our additions
	@tools/test.sh stock

bench: setup  ## run the benchmarks at small sizes, against PyTorch if it is installed; BENCH_ARGS for more arguments
	@for name in step ops transfer parallel; do $(run) benchmarks/bench_$$name.py $(BENCH_ARGS) || exit 1; done
	@$(run) benchmarks/roofline.py benchmarks/results/ops_cpu.json

docs: setup  ## the public API as HTML in .make/docs
	@$(run) tools/reference.py .make/docs

wheel: setup  ## build dist/*.whl and check that it holds the kernels
	@rm -rf build dist
	@$(run) -m build >.make/wheel.log 2>&1 || { cat .make/wheel.log; exit 1; }
	@$(run) tools/check_wheel.py dist/*.whl

clean:  ## remove everything that was made
	rm -rf .venv .drivers .make build dist *.egg-info ag/engine/backends/vulkan/spv third_party/kp/build third_party/kp/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
