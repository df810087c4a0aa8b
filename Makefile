# After make bench or make test, .venv/bin/snakemake is the interface.

PYTHON ?= python3
SNAKEMAKE = .venv/bin/snakemake
INSTALL = .venv/bin/pip install --disable-pip-version-check --no-deps
# PLATFORM=cpu make bench forces a platform; CONFIG=my.yaml takes another configuration
ARGUMENTS = $(if $(CONFIG),--configfile $(CONFIG)) $(if $(PLATFORM),--config platform=$(PLATFORM))

# seen before anything is installed; Snakemake would end in a traceback
ifneq ($(filter bench,$(MAKECMDGOALS)),)
$(foreach file,$(CONFIG),$(if $(wildcard $(file)),,$(error CONFIG=$(file) is not a file here ($(CURDIR)))))
endif

.PHONY: bench test acceptance check cluster lock clean-results clean help
.DEFAULT_GOAL := help

bench: .venv/installed ## install, climb the ladder, print the table; CONFIG=my.yaml, PLATFORM=cpu, TORCH=cpu
	@rm -f .ladder/checked; $(SNAKEMAKE) $(ARGUMENTS); status=$$?; \
	if [ $$status = 0 ] || [ -f .ladder/checked ]; then .venv/bin/python scripts/show.py; fi; exit $$status

test: .venv/installed-tests ## install, run the tests
	.venv/bin/pytest -q -rs -m "not slow"

acceptance: .venv/installed-tests ## full-size runs and repeated trials: hours
	.venv/bin/pytest -q -m slow

check: .venv/installed-tests ## formatters, linters, type checker
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/snakefmt --check Snakefile rules
	.venv/bin/mypy
	$(SNAKEMAKE) --lint

cluster: .venv/installed ## install what submits to Slurm and other clusters (docs/clusters.md)
	$(INSTALL) -r envs/cluster.txt

lock: ## resolve envs/*.in anew into envs/*.txt
	sh envs/lock.sh

clean-results: ## forget measurements and tables, keep exported models and engines
	rm -rf results logs

clean: clean-results ## forget everything but the environment
	rm -rf artifacts .snakemake .ladder .venvs

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */make \1\t/' | expand -t 20

# TORCH=cpu takes PyTorch's CPU-only build from its own index: 4 GB less on disk
.venv/installed: envs/main.txt envs/torch-cuda.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=python3.12 make …")'
	@test -x .venv/bin/pip || "$(PYTHON)" -m venv .venv || { echo "python3 -m venv failed: on Debian or Ubuntu install python3-venv"; exit 1; }
	@echo "Installing the environment into .venv (once; a download of about 3.2 GB, under 1 GB with TORCH=cpu) …"
ifeq ($(TORCH),cpu)
	$(INSTALL) --extra-index-url https://download.pytorch.org/whl/cpu -r envs/main.txt
else
	$(INSTALL) -r envs/main.txt -r envs/torch-cuda.txt
endif
	@touch $@

# Snakemake's plugins in folders of their own, which tests that need them name: others do not wait for their imports
.venv/installed-tests: .venv/installed envs/test.txt envs/cluster.txt envs/storage.txt
	$(INSTALL) -r envs/test.txt
	$(INSTALL) --quiet --upgrade --target .venv/cluster -r envs/cluster.txt
	$(INSTALL) --quiet --upgrade --target .venv/storage -r envs/storage.txt
	@touch $@
