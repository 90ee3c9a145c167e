# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# They need Python (3.11 or later), make and a package index. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The extras are installed beside, so that `make test` shows what works without them.
EXTRAS := $(VENV)-extras
EXTRAS_READY := $(EXTRAS)/.ready
# On Linux, PyPI's torch brings several gigabytes of CUDA libraries. Without an NVIDIA driver, torch comes from PyTorch's
# own index of CPU builds. TORCH_INDEX=https://… chooses another index; TORCH_INDEX= takes torch from where pip takes
# everything else.
TORCH_INDEX ?= $(shell test "$$(uname -s)" = Linux && ! command -v nvidia-smi >/dev/null && echo https://download.pytorch.org/whl/cpu)
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check
# A module is compiled when it is first imported: one in five of those installed ever is.
export PYTHONDONTWRITEBYTECODE :=

EXTRA_TESTS := test-extras-files test-extras-notebooks
.PHONY: help demo test extras test-extras $(EXTRA_TESTS) check style export readme notebooks lab samples runs study real bench docs wheel clean

help:
	@echo "make demo          set up, then the demo: offline, no GPU"
	@echo "make test          set up, then every test: the notebooks' and those in tests/"
	@echo "make extras        install every extra but vllm in an environment of its own"
	@echo "make test-extras   install every extra but vllm (Spark needs Java) and run the tests that need one"
	@echo "make check         package, README and notebooks agree, stored outputs are clean, ruff passes"
	@echo "make style         how the notebooks read, and how large the package is, as tables"
	@echo "make lab           JupyterLab"
	@echo "make notebooks     execute all notebooks in place (flagged cells keep their recorded output)"
	@echo "make export        write wbe/ from nbs/"
	@echo "make readme        write README.md from nbs/index.ipynb"
	@echo "make samples       write the dumps and the benchmark in data_samples/ again"
	@echo "make runs          make data_samples/runs, runs_curves, runs_forms and runs_later again: every editor (hours on two cores)"
	@echo "make study         train four smaller models and make data_samples/study: eight runs on each"
	@echo "make real ROWS=…   fetch SmolLM2-135M and MiniLM (190 MB), and run five editors on rows of a benchmark of yours"
	@echo "make bench         the benchmarks in tests/benchmarks/ (minutes)"
	@echo "make docs          the documentation site in _docs/, offline"
	@echo "make wheel         build dist/wbe-*.whl"

# Set up once, and again only when the requirements have changed.
$(READY): settings.ini constraints.txt setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(TORCH_INDEX),)
	$(PIP) --no-deps --retries 1 --index-url $(TORCH_INDEX) "$$(grep '^torch==' constraints.txt)" \
		|| echo "$(TORCH_INDEX) was not reached: torch comes from where pip takes everything else"
endif
	$(PIP) -c constraints.txt -e '.[dev,lm,llm,hub,report,docs]'
	touch $@

$(EXTRAS_READY): $(READY) nbs/_dev/extras.py
	$(BIN)/python nbs/_dev/extras.py install $(EXTRAS)
	touch $@

extras: $(EXTRAS_READY)

demo: $(READY)
	$(BIN)/wbe demo

# Two processes with a thread for each core between them are slower than two with one thread each.
test $(EXTRA_TESTS): export OMP_NUM_THREADS ?= 1

test: $(READY)
	$(BIN)/python nbs/_dev/notebooks.py test
	$(BIN)/python -m pytest tests --forks 3  # some wait for a server or for another process

# Skipped elsewhere, run here: a test that is skipped for an unexpected reason fails (see tests/conftest.py).
$(EXTRA_TESTS): export WBE_STRICT = 1
$(EXTRA_TESTS): export WBE_EXTRAS = 1
# Spark's small jobs end before Java's second compiler pays: a quarter less time.
$(EXTRA_TESTS): export JAVA_TOOL_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# `make test-extras -j 2` runs both beside each other.
test-extras: $(EXTRA_TESTS)

test-extras-files: $(EXTRAS_READY)
	$(EXTRAS)/bin/python -m pytest tests -m extra --forks 2

test-extras-notebooks: $(EXTRAS_READY)
	$(EXTRAS)/bin/python nbs/_dev/extras.py notebooks

check: $(READY)
	$(BIN)/python nbs/_dev/notebooks.py check

style: $(READY)
	$(BIN)/python nbs/_dev/notebooks.py style
	$(BIN)/python nbs/_dev/size.py

export: $(READY)
	$(BIN)/nbdev_export

readme: $(READY)
	$(BIN)/python nbs/_dev/notebooks.py readme

notebooks: $(READY)
	$(BIN)/python nbs/_dev/notebooks.py run

lab: $(READY)
	$(BIN)/jupyter lab nbs

samples: $(READY)
	$(BIN)/python data_samples/make.py

runs: $(READY)
	rm -rf data_samples/runs data_samples/runs_curves data_samples/runs_forms data_samples/runs_later
	OMP_NUM_THREADS=1 $(BIN)/wbe sweep data_samples/sweep.toml --jobs 2
	OMP_NUM_THREADS=1 $(BIN)/wbe sweep data_samples/sweep_curves.toml --jobs 2
	OMP_NUM_THREADS=1 $(BIN)/wbe sweep data_samples/sweep_forms.toml --jobs 2
	OMP_NUM_THREADS=1 $(BIN)/wbe sweep data_samples/sweep_later.toml --jobs 2
	rm -rf data_samples/runs*/.before data_samples/runs*/*/state data_samples/runs*/*/output.txt

STUDY := $(foreach m,small-0 small-1 small-2 middle-0,models/wbe-tiny-$m/training.json)

# The name of a folder says size and seed: models/wbe-tiny-SIZE-SEED.
models/wbe-tiny-%/training.json: | $(READY)
	OMP_NUM_THREADS=1 $(BIN)/wbe train tiny -o $(@D) --set size=$(firstword $(subst -, ,$*)) \
		--set seed=$(lastword $(subst -, ,$*)) --set steps=4500 --set batch=6

study: $(STUDY)
	OMP_NUM_THREADS=1 $(BIN)/wbe sweep data_samples/study.toml --jobs 2
	$(BIN)/python data_samples/keep_study.py data_samples/study

# Without ROWS it only fetches. EDITS=300 makes more edits.
real: $(READY)
	$(BIN)/python nbs/_dev/real.py $(if $(ROWS),run "$(ROWS)" --edits $(or $(EDITS),30),fetch)

bench: $(READY)
	for b in tests/benchmarks/*.py; do $(BIN)/python $$b || exit 1; done

wheel: $(READY)
	rm -rf build dist
	$(BIN)/python -m build --wheel --outdir dist .

docs: $(READY)
	$(BIN)/python nbs/_dev/docs.py

clean:
	rm -rf $(VENV) $(EXTRAS) build dist *.egg-info wbe-demo
