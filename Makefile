# make demo [USD=0.25]   an agent and its proxy are killed; the receipt beside a clean run's
# make test              everything that is checked, but for what needs programs of others
# make test-clients      seven CLI agents, npm's clients, Python's frameworks, the page in Chromium (installs them)
# make python            the wheel of the Python package, with the `outlast` command in it
# make dist              every file that is handed out, in dist/: wheel, sdist, tarball, .deb, npm, OCI image, SBOMs, sums
# make dist-test         each of these files installed, tried, upgraded and removed as it is, in an empty place
# make bench             the cost of it all in one table, beside the disk, bare loops, nginx, LiteLLM, DBOS and Absurd; what got slower
# make growth [ENTRIES=10000,100000,1000000]   what people type, timed on stores of so many entries
# make sim [SEEDS=100000] [FROM=0]   the simulator: seeds a second, what was met, and seeds that fail
# make model [EXTENT=3,2,5]   the model of traces explored: so many processes, calls and operations; prints states and their rate
# make fuzz [EACH=3600]   what reads bytes of others, guided by its coverage: so many seconds for each target
# make crash [KILLS=5000] [SEED=N]   the real program killed at every system call that writes; writes docs/evidence.md
# make crash-foreign [MAX=40]   `outlast crashtest` on examples of SDKs and frameworks, and on CLI agents: so many deaths each
# make power-loss        the power is lost before each sync of a store, and below a file system (root, loop devices)
#
# Each does all set-up itself and can be run again. Debian's packages that are missing are installed when we
# are root; else they are named.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:

USD ?= 0.25
SEEDS ?= 100000
FROM ?= 0
EXTENT ?= 3,2,5
EACH ?= 3600
MAX ?= 40
KILLS ?= 5000
ENTRIES ?= 10000,100000,1000000
TARGET := $(or $(CARGO_TARGET_DIR),target)
OUTLAST := $(TARGET)/debug/outlast
PYTHON := .venv/bin/python

.PHONY: help demo program test test-clients python dist dist-test sim model crash crash-foreign fuzz power-loss bench growth build system venv clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: program
	@.venv-demo/bin/python scripts/demo.py --usd $(USD) --outlast $(TARGET)/demo/outlast

# What the demonstrations run, and nothing else: the program, in a profile that is quick to compile, and the SDKs.
# The SDKs come over the network meanwhile.
program:
	@scripts/setup.sh cc venv
	$(MAKE) --no-print-directory .venv-demo/ready &
	trap wait EXIT
	cargo build --locked --profile demo --package outlast --no-default-features
	wait $$!

test: system venv
	@OUTLAST_BIN=$(abspath $(OUTLAST)) PYTHON=$(abspath $(PYTHON)) scripts/test.sh

test-clients: system venv .venv-clients/ready
	@scripts/setup.sh npm chromium
	@OUTLAST_BIN=$(abspath $(OUTLAST)) PYTHON=$(abspath $(PYTHON)) scripts/test-clients.sh

# Peers have a place of their own: they are no part of the tests. What is not installed there is no peer of the run.
bench: python
	@scripts/setup.sh nginx
	[ -d .venv-bench ] || python3 -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -r benches/peers/requirements.txt || echo "some peers could not be installed: they are none of this run"
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(TARGET)/wheels/outlast-*.whl
	cargo build --release -p outlast -p outlast-bench
	PYTHON=$(PYTHON) $(TARGET)/release/outlast-bench

growth:
	@scripts/setup.sh cc
	cargo build --release -p outlast -p outlast-bench --bins --examples
	python3 benches/growth.py --outlast $(TARGET)/release/outlast --entries $(ENTRIES)

sim:
	cargo build --release -p outlast-sim
	@$(TARGET)/release/outlast-sim $(SEEDS) $(FROM)

model:
	@OUTLAST_MODEL=$(EXTENT) cargo test --release --quiet -p outlast-sim --test it -- --nocapture --test-threads 1 the_model_of_traces

fuzz:
	@scripts/setup.sh cc
	@scripts/fuzz.sh $(EACH)

# In release, as it is handed out. A campaign that does not find a fault that it has planted fails.
crash: | system venv
	@cargo build --release --quiet -p outlast -p outlast-python -p outlast-sim
	@OUTLAST_BIN=$(TARGET)/release/outlast $(PYTHON) scripts/crash/campaign.py --kills $(KILLS) --postgres $(if $(SEED),--seed $(SEED))

crash-foreign: build venv .venv-clients/ready
	@scripts/setup.sh npm
	@scripts/clis.sh $(TARGET)/clis
	@OUTLAST_BIN=$(OUTLAST) $(PYTHON) scripts/crash/foreign.py --max $(MAX)

power-loss: build venv
	@OUTLAST_BIN=$(abspath $(OUTLAST)) $(PYTHON) scripts/crash/power.py
	@$(PYTHON) scripts/power-loss.py

# In release, into target/wheels. Tests use the extension of the workspace's own build.
python: venv
	@scripts/setup.sh cc
	$(PYTHON) -m maturin build --release --manifest-path crates/python/Cargo.toml --out $(TARGET)/wheels

# Compiled by one build, with zig for a C compiler: see scripts/dist.py.
dist: .venv-dist/ready
	@scripts/setup.sh cc $(if $(wildcard typescript/package.json),npm)
	@.venv-dist/bin/python scripts/dist.py

dist-test: .venv-demo/ready
	@scripts/setup.sh npm debootstrap
	@.venv-demo/bin/python scripts/dist-test.py

# The whole workspace, so that features are the same as in `make test` and nothing is built twice.
build: | system
	@[ -e $(OUTLAST) ] || echo "building; the first time this takes some minutes"
	@cargo build --workspace --quiet

system:
	@scripts/setup.sh cc venv script ps shells tls pgbouncer

venv: .venv/ready

.venv/ready: requirements-dev.txt requirements-demo.txt | system
	@echo "making .venv"
	@python3 -m venv --clear .venv
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

.venv-demo/ready .venv-dist/ready .venv-clients/ready: .venv-%/ready: requirements-%.txt
	@scripts/setup.sh cc venv
	@echo "making .venv-$*"
	@python3 -m venv --clear .venv-$*
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-$*.txt
	@touch $@

clean:
	rm -rf .venv .venv-clients .venv-demo .venv-dist .run dist
	cargo clean
