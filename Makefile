# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# They need Python (3.11 or later), make and a package index. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test check style export readme notebooks lab samples runs bench docs wheel clean

help:
	@echo "make demo       set up, then the demo: offline, no GPU"
	@echo "make test       set up, then every test: the notebooks' and those in tests/"
	@echo "make check      package, README and notebooks agree, stored outputs are clean, ruff passes"
	@echo "make style      a table of cell lengths, prose and tests of the notebooks"
	@echo "make lab        JupyterLab"
	@echo "make notebooks  execute all notebooks in place (flagged cells keep their recorded output)"
	@echo "make export     write wbe/ from nbs/"
	@echo "make readme     write README.md from nbs/index.ipynb"
	@echo "make samples    write the dumps and the benchmark in data_samples/ again"
	@echo "make runs       make data_samples/runs again: every editor, eight timesteps (two hours on two cores)"
	@echo "make bench      the benchmarks in tests/benchmarks/ (minutes)"
	@echo "make docs       the documentation site in _docs/, offline"
	@echo "make wheel      build dist/wbe-*.whl"

# Set up once, and again only when the requirements have changed.
$(READY): settings.ini constraints.txt setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,lm,llm,docs]'
	touch $@

demo: $(READY)
	$(BIN)/wbe demo

test: $(READY)
	$(BIN)/nbdev_test --n_workers 2 --do_print --timing
	$(BIN)/python -m pytest tests -n 2 --dist loadfile

check: $(READY)
	$(BIN)/python nbs/_dev/notebooks.py check

style: $(READY)
	$(BIN)/python nbs/_dev/notebooks.py style

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
	rm -rf data_samples/runs
	OMP_NUM_THREADS=1 $(BIN)/wbe sweep data_samples/sweep.toml --jobs 2
	rm -rf data_samples/runs/*/state data_samples/runs/*/output.txt

bench: $(READY)
	for b in tests/benchmarks/*.py; do $(BIN)/python $$b || exit 1; done

wheel: $(READY)
	rm -rf build dist
	$(BIN)/python -m build --wheel --outdir dist .

docs: $(READY)
	$(BIN)/python nbs/_dev/docs.py

clean:
	rm -rf $(VENV) build dist *.egg-info wbe-demo
