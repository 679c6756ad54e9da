# `make` lists the targets. All but help and clean first make the environment (tools/shell/setup.sh), instant once made.
# Variables: PYTHON=python3.12 (what .venv is made with), PIP_ARGS= (for pip install, e.g. another index), POST=, ARGS=,
#            LAB_ARGS=, REPOSITORY=

# An active environment is used as it is. conda's base does not count: conda activates it in every shell unasked.
CONDA_ENV := $(if $(filter base,$(CONDA_DEFAULT_ENV)),,$(CONDA_PREFIX))
ENV_DIR := $(or $(VIRTUAL_ENV),$(CONDA_ENV),$(CURDIR)/.venv)
PY := "$(ENV_DIR)/bin/python"

# A worker a core, with one thread each: on two cores, two workers with two threads each take longer. Bytecode is kept,
# also where the environment asks for none: each worker imports all tests, and would compile all of them every time.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$(or $(OMP_NUM_THREADS),1) $(PY) -m pytest -n logical --maxprocesses 8 --dist loadscope
# Without plugins that tests have no use for: xdist's controller and then each worker would take 1.5 s to import them.
TESTS := $(PYTEST) -p no:nbval -p no:schemathesis
# What fails beside other tests, by path: to collect all tests would take half a minute.
ALONE := $(PY) -m pytest $$(grep -rl --include='*.py' mark.alone tests)

.PHONY: help setup lab check test nightly ladder reproduce gpu-report peers tensorboard notebooks slides book check-links doctor tiny clean

##@ Begin

help: ## list the targets
	@awk -F ':.*## ' '/^##@/{print substr($$0, 5)} /^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: ## make the environment: .venv, or the active one is used (all others do this first)
	@ENV_DIR="$(ENV_DIR)" PYTHON="$(PYTHON)" PIP_ARGS="$(PIP_ARGS)" sh tools/shell/setup.sh

doctor: setup ## one table of what will run here, and how to fix what will not (ARGS=--json)
	@$(PY) -m roseinfer doctor $(ARGS)

# PATH: what a notebook or a JupyterLab terminal calls by name (tensorboard, pip) is this environment's.
# .jupyter: settings (no popup that asks about news, no request to the network), and the extension that draws frames.
lab: setup ## open the course in JupyterLab (LAB_ARGS="--no-browser --port 9999")
	@root=; [ "$$(id -u)" != 0 ] || root=--allow-root; \
	PATH="$(ENV_DIR)/bin:$$PATH" JUPYTER_PATH="$(CURDIR)/.jupyter$${JUPYTER_PATH:+:$$JUPYTER_PATH}" \
	JUPYTER_CONFIG_PATH="$(CURDIR)/.jupyter$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	$(PY) -m jupyterlab $$root --ServerApp.root_dir="$(CURDIR)" \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB_ARGS)

##@ Check

check: setup ## in about a minute: lint, format, types, and the quick tests: the layers, the stages' hashes, what recordings say, the words
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy & types=$$!; \
	$(TESTS) -m "not slow and not browser and not gpu and not nightly" tests && tested=yes; \
	wait $$types || { echo "mypy failed, see above" >&2; exit 1; }; [ "$$tested" ]

test: check ## before a commit: `make check`, which shows first what is likely red; then the slow tests (some in a real browser), and the core path of every notebook that has changed against its recorded outputs and its solutions
	@sh tools/shell/browser.sh
	$(TESTS) -m "(slow or browser) and not alone and not nightly" tests
	$(ALONE) -m "alone and not nightly"
	$(PYTEST) --nbval -m "not nightly" notebooks

nightly: export ROSEINFER_DRAWS = 8
nightly: test ## everything: `make test`, then each stage by each promise, the notebooks with their folded cells, all mutants of the solutions, the book and the slides
	$(TESTS) -m "nightly and not alone" tests
	$(ALONE) -m "nightly and alone"
	$(PYTEST) --nbval notebooks
	$(PY) -m tools.mutants
	$(PY) -m tools.book
	$(PY) -m roseinfer slides notebooks/*.ipynb

check-links: setup ## check every link of the README, docs, the teacher's kit and the lessons (ARGS=--online asks the web, too)
	@$(PY) -m roseinfer links $(ARGS)

##@ Measure

ladder: setup ## race all stages on the same prompts (ARGS="--model tiny --batch-size 16")
	@$(PY) -m roseinfer ladder $(ARGS)

reproduce: setup ## run what a post measured, its tables beside ours in reports/ (POST=000 to 004, ARGS=--quick)
	@$(PY) -m roseinfer reproduce $(POST) $(ARGS)

gpu-report: setup ## on a GPU: check every kernel, stage and the engine, race them, record it in data/ (8 minutes)
	@PY=$(PY) sh tools/shell/gpu_report.sh

peers: setup ## install CTranslate2 and compile llama.cpp in build/peers, for `roseinfer bench offline` and `bench serve` to race; nothing else needs it
	@PYTHON="$(PYTHON)" PIP_ARGS="$(PIP_ARGS)" sh tools/shell/peers.sh

tensorboard: setup ## profile a decode step of two stages and serve it to TensorBoard (ARGS="--stages s01,s03 --port 0")
	@$(PY) -m roseinfer tensorboard $(ARGS)

##@ Publish

notebooks: setup ## run all notebooks again and record their outputs in place
	$(PY) -m tools.record notebooks/*.ipynb

slides: setup ## one file of slides per lesson in build/slides/, from the recorded notebooks; they show offline
	@$(PY) -m roseinfer slides notebooks/*.ipynb

book: setup ## the course as a static site in build/book/, from the recorded notebooks; nothing runs, nothing is fetched (REPOSITORY=OWNER/NAME: with buttons that open lessons online)
	@$(PY) -m tools.book --repository "$(REPOSITORY)"

tiny: setup ## train the bundled model again (ARGS="--minutes 60")
	$(PY) tools/train_tiny.py $(ARGS)

##@ Clean up

clean: ## remove .venv, build (`make peers` compiles there), the caches and the set-up's stamp
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis notebooks/.hypothesis "$(ENV_DIR)/.roseinfer-stamp"
	find . -name __pycache__ -prune -exec rm -rf {} +
