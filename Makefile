# The commands of the project; CI calls only these. tools/setup.sh prepares what a target needs, tools/test.sh runs the
# legs of the tests. Everything made lies in the repository.

PYTHON ?= python3
PYTEST_ARGS ?=
export PYTHON PYTEST_ARGS
run := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo setup-test demo test test-full lint test-quick test-sync test-slow test-long mutants bench docs wheel gpu-kit clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '%-12s %s\n' "$$target" "$$text"; done

setup:  ## install what is missing: system packages (root or sudo), .venv with development tools, extension, kernels
	@tools/setup.sh dev

setup-demo:  ## the same for one training: 5 packages of PyPI instead of 130, kernels for this processor
	@tools/setup.sh demo

setup-test:  ## what `setup` does, with the validation layer and the tests' two drivers
	@tools/setup.sh test

demo: setup-demo  ## train iris data-parallel on every Vulkan device, or on the CPU
	@$(run) examples/dp_iris.py

test: setup-test  ## run lint, test-quick and test-sync: about 4 minutes on two cores at a slowness of 1
	@tools/test.sh lint quick sync

test-full: setup-test  ## run what `make test` leaves out: test-slow, kernels and ops under validation, mutants
	@tools/test.sh slow sync_full mutants

lint: setup  ## ruff and mypy --strict
	@tools/test.sh lint

test-quick: setup-test  ## the tests on the CPU and on two Vulkan drivers, without those marked slow
	@tools/test.sh quick

test-sync: setup-test  ## each kernel, and what submits them, under synchronization validation
	@tools/test.sh sync

test-slow: setup-test  ## the tests marked slow: long trainings, and the whole tables
	@tools/test.sh slow

test-long: setup-test  ## before a release: tests that build or compile all anew, or repeat whole files under conditions
	@tools/test.sh long

mutants: setup-test  ## break the package in some 280 small ways: does the quick leg notice? MUTANTS for some of them
	@tools/test.sh mutants

bench: setup  ## run the benchmarks at small sizes, against PyTorch if it is installed, and draw them; BENCH_ARGS for more
	@for name in step ops transfer parallel comm import loaded types packed examples; do $(run) benchmarks/bench_$$name.py $(BENCH_ARGS) || exit 1; done
	@$(run) benchmarks/roofline.py benchmarks/results/ops_cpu.json
	@$(run) tools/pictures.py

docs: setup  ## the documentation site in .make/docs; a warning or a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(run) -m mkdocs build --config-file tools/mkdocs.yml >.make/docs.log 2>&1 \
		|| { grep -v ^INFO .make/docs.log; exit 1; }
	@echo "ag: python3 -m http.server -d .make/docs shows it on http://localhost:8000"

gpu-kit: setup  ## pack .make/gpu-kit.tar, with which a bare machine checks its graphics card; GPU_KIT_PYTHONS for some
	@$(run) tools/gpu_kit/build.py $(GPU_KIT_PYTHONS)

wheel: setup  ## build dist/*.tar.gz and dist/*.whl, and check what is in the wheel
	@rm -rf build dist
	@$(run) -m build >.make/wheel.log 2>&1 || { cat .make/wheel.log; exit 1; }
	@$(run) tools/check_wheel.py dist/*.whl

clean:  ## remove everything that was made
	rm -rf .venv .drivers .make build dist *.egg-info ag/engine/backends/shader/spv ag/engine/backends/cpu/built
	find ag -name '_*.so' -delete -o -name not_built.txt -delete
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
