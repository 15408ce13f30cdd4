# On a fresh machine: make demo, make test. Python 3.11 or newer is all that must be there; the rest lands in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-slow test-nightly test-gpu oracles coverage check bench fuzz mutations promises published scale gallery docs same size clean fio libnfs gcc strace ganesha slurm chromium lancedb

# Without it, each of hundreds of processes that tests start would compile iobench anew.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
MINUTES ?= 10
# The commit with which make same compares.
BASE ?= HEAD
# make test-slow also runs the nightly tests of what changed since this commit.
SINCE ?=
export SINCE
# DLIO's program dlio_benchmark, for make bench. Nothing here installs it.
DLIO ?=
# Oracles, fault loops and startup times measure what coverage itself would change.
COVERED ?= --ignore=tests/oracle --ignore=tests/faults/test_fault_loop.py --ignore=tests/e2e/test_startup.py
BIN := .venv/bin
TOGETHER := $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder
# Slow tests start processes and wait for them: with three at a time two cores are idle half the time.
MORE_TOGETHER := $(TOGETHER) -n 6
# Oracles measure speeds: one at a time, with nothing beside them.
ONE_BY_ONE := $(BIN)/python -m pytest -q
# What the short ones and the slow ones plant is mostly a wait, of which they take seconds of CPU.
TWO_AT_A_TIME := $(ONE_BY_ONE) -n 2
STAMP := .venv/installed
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq
ROOT_APT := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null

help:  ## this list
	awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) fio libnfs  ## make .venv with everything in it; fio and libnfs from apt where possible

demo: setup  ## generate a small dataset in demo-data, run, print the verdict
	test -f demo-data/manifest.json || $(BIN)/iobench generate demo --to demo-data
	$(BIN)/iobench run demo --data demo-data --repeat 4 --calibration 2s --ablations 12s

test: setup gcc  ## each verb, contracts, security and a short oracle for each answer (3 to 6 minutes)
	$(TOGETHER) -m 'fast and not alone'
	$(TWO_AT_A_TIME) -m 'fast and alone' tests/oracle

test-all: test test-slow  ## what a change must pass: also real servers, libraries, faults (10 to 16 minutes)

test-slow: setup gcc strace ganesha $(if $(SINCE),slurm chromium)  ## what test-all adds; and nightly tests of what changed SINCE=COMMIT
	$(MORE_TOGETHER) -m '(slow and not nightly or touched) and not alone'
	$(TWO_AT_A_TIME) -m 'slow and not nightly and alone' tests/oracle

test-gpu: setup  ## what uses a CUDA device, on a host that has one (needs torch with CUDA in .venv)
	$(ONE_BY_ONE) -m gpu tests/gpu

test-nightly: test-all mutations fuzz  ## everything, before a release (two hours)
	$(MAKE) slurm chromium
	$(MORE_TOGETHER) -m 'nightly and not alone'
	$(TOGETHER) -m 'hypothesis and not alone' --hypothesis-profile=many
	$(ONE_BY_ONE) -m 'nightly and alone' tests/oracle

oracles: setup gcc strace ganesha  ## every oracle, one at a time (an hour)
	$(ONE_BY_ONE) -m alone tests/oracle

coverage: setup gcc strace ganesha slurm chromium  ## which branches the tests take, by package (half an hour)
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder $(COVERED)
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m tools.branches

check: $(STAMP)  ## lint, format, types
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	$(BIN)/mypy --strict --num-workers 2

bench: setup chromium  ## hot paths, then storage, checkpoints and S3 against fio and plain peers, and DLIO=PATH (an hour)
	$(BIN)/python -m pytest -q tests/bench --benchmark-enable --benchmark-only
	$(BIN)/python -m tools.bench.storage
	$(BIN)/python -m tools.bench.checkpoint_vs_fio
	$(BIN)/python -m tools.bench.s3_vs_client
	$(BIN)/python -m tools.bench.dlio --dlio "$(DLIO)"
	$(BIN)/python -m tools.bench.user_loader
	$(BIN)/python -m tools.bench.serving --folder .
	$(BIN)/python -m tools.bench.page

fuzz: $(STAMP)  ## look for inputs that do harm, for MINUTES=10; what is found lies in tests/corpus
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

mutations: setup gcc strace ganesha  ## break each promise in a copy; its tests must fail (half an hour); ONLY='NAME NAME'
	$(BIN)/python -m tools.mutations $(if $(ONLY),--only $(ONLY))

promises: setup gcc  ## measure the figures of docs/promises.md and docs/statistics.md (a quarter of an hour)
	$(BIN)/python -m tools.promises

published: setup  ## measure what threads have published again, and write docs/published.md (ten minutes)
	$(BIN)/python -m tools.published

scale: $(STAMP)  ## compute the tables of docs/scale.md from published measurements (seconds)
	$(BIN)/python -m tools.scale

gallery: setup  ## measure small runs of each kind, and keep their pages in results/reference (ten minutes)
	$(BIN)/python -m tools.gallery

settings: $(STAMP)  ## write docs/settings.md from the models of the settings (seconds)
	$(BIN)/python -m tools.settings

docs: $(STAMP)  ## the pages as a site in build/site, with every link checked (seconds)
	$(BIN)/python -m tools.site

same: $(STAMP)  ## which figures and words of reports changed since BASE=HEAD; RENAMED=FILE has changed names
	$(BIN)/python -m tools.same --base "$(BASE)" $(if $(RENAMED),--renamed "$(RENAMED)")

size: $(STAMP)  ## lines of code, files and functions of iobench and of its tests, by folder
	$(BIN)/python -m tools.size

clean:  ## remove demo-data, .venv and caches; results stay
	if [ -e demo-data ] && [ -x $(BIN)/iobench ]; then $(BIN)/iobench clean demo-data; fi
	rm -rf .venv .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks build dist
	find iobench tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("iobench needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then
	  $(ROOT_APT) || { echo "Python's venv is missing. Install it: apt-get install python3-venv" >&2; exit 1; }
	  echo "installing python3-venv" >&2
	  $(APT) update >/dev/null && $(APT) install -y python3-venv >/dev/null
	fi
	echo "installing into .venv (once; takes minutes where torch must be downloaded)" >&2
	rm -f $@
	$(PYTHON) -m venv --clear .venv
	# The pip that comes with older Pythons takes twice as long to choose versions.
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt pip
	# torch first and by its exact version, so that pip never weighs another build of it.
	$(BIN)/pip install -qq --disable-pip-version-check "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

fio:
	command -v fio >/dev/null && exit 0
	if $(ROOT_APT); then
	  echo "installing fio" >&2
	  $(APT) update >/dev/null 2>&1 && $(APT) install -y fio >/dev/null 2>&1 && exit 0
	fi
	echo "fio is missing, so the storage's raw ceiling will not be measured. Install it: apt-get install fio" >&2

libnfs:
	$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnfs.so.13")' 2>/dev/null && exit 0
	if $(ROOT_APT); then
	  echo "installing libnfs" >&2
	  $(APT) update >/dev/null 2>&1 && $(APT) install -y libnfs13 >/dev/null 2>&1 && exit 0
	fi
	echo "libnfs is missing, so nfs:// will not work. Install it: apt-get install libnfs13" >&2

# The tests of faults compile a library that lets file operations fail.
gcc:
	command -v gcc >/dev/null && echo '#include <semaphore.h>' | gcc -E - >/dev/null 2>&1 && exit 0
	if $(ROOT_APT); then
	  echo "installing gcc" >&2
	  $(APT) update >/dev/null 2>&1 && $(APT) install -y gcc libc6-dev >/dev/null 2>&1 && exit 0
	fi
	echo "gcc is missing, so faults will not be tested. Install it: apt-get install gcc libc6-dev" >&2

# A test compares the bytes that a user's loader reads with its system calls.
strace:
	command -v strace >/dev/null && exit 0
	if $(ROOT_APT); then
	  echo "installing strace" >&2
	  $(APT) update >/dev/null 2>&1 && $(APT) install -y strace >/dev/null 2>&1 && exit 0
	fi
	echo "strace is missing, so the bytes of a user's loader will not be compared. Install it: apt-get install strace" >&2

# The tests of pages open them in it. A font comes with it, so that there is one on a bare machine.
chromium:
	command -v chromium >/dev/null && exit 0
	if $(ROOT_APT); then
	  echo "installing chromium" >&2
	  $(APT) update >/dev/null 2>&1 && $(APT) install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 && exit 0
	fi
	echo "chromium is missing, so pages will not be opened. Install it: apt-get install chromium" >&2

# A real engine of vector search, for one kind of scenario: 187 MB that no other test needs.
lancedb: $(STAMP)
	$(BIN)/python -c 'import lancedb' 2>/dev/null && exit 0
	echo "installing lancedb" >&2
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[lancedb]'

# Servers of tests are started by the tests themselves, on loopback. policy-rc.d keeps apt from
# starting them, and systemctl keeps them, and what comes with them, from the next boot.
define INSTALL_WITHOUT_STARTING
policy=/usr/sbin/policy-rc.d
if [ ! -e $$policy ]; then
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  printf '#!/bin/sh\nexit 101\n' >$$policy
  chmod +x $$policy
fi
if $(APT) update >/dev/null 2>&1 && $(APT) install -y --no-install-recommends $$packages >/dev/null 2>&1; then
  ! command -v systemctl >/dev/null || systemctl -q disable $$unwanted 2>/dev/null || true
  exit 0
fi
endef

ganesha:
	command -v ganesha.nfsd >/dev/null && exit 0
	if $(ROOT_APT); then
	  echo "installing nfs-ganesha" >&2
	  packages="nfs-ganesha nfs-ganesha-vfs" unwanted=nfs-ganesha
	  command -v rpcbind >/dev/null || unwanted="nfs-ganesha rpcbind.service rpcbind.socket"
	  $(INSTALL_WITHOUT_STARTING)
	fi
	echo "nfs-ganesha is missing, so NFS version 4 will not be tested. Install it: apt-get install nfs-ganesha nfs-ganesha-vfs" >&2

# The tests of the batch script start two nodes of Slurm on this machine.
slurm:
	{ command -v slurmctld && command -v slurmd && command -v munged; } >/dev/null && exit 0
	if $(ROOT_APT); then
	  echo "installing Slurm" >&2
	  packages="slurmctld slurmd slurm-client munge" unwanted="slurmctld slurmd munge"
	  $(INSTALL_WITHOUT_STARTING)
	fi
	echo "Slurm is missing, so its batch script will not be tested. Install it: apt-get install slurmctld slurmd slurm-client munge" >&2
