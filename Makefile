# Developers' and first-time users' entry points.  On Windows use the commands of README, "Without make".
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

.PHONY: demo test fast e2e lint format bench wheel clean prerequisites

demo: $(VENV)/.installed
	@$(BIN)/gdf-market demo $(ARGS)

test: fast e2e

# Tests in parallel, one thread each: two processes that both use all cores would be slower than one
fast: export OMP_NUM_THREADS = 1
fast: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not e2e and not interop" -q -n logical --dist worksteal

e2e: $(VENV)/.dev
	$(BIN)/python -m pytest -m "e2e and not internet" -q

# Markets and routers in namespaces of this machine: slow, lossy lines, owners and workers that vanish, NAT: some minutes
.PHONY: test-internet
test-internet: $(VENV)/.dev
	$(BIN)/python -m pytest -m internet -q

# An independent client on js-libp2p against real nodes; needs Node.js 20 or newer with npm
.PHONY: test-interop
test-interop: $(VENV)/.dev
	@command -v npm >/dev/null 2>&1 && command -v node >/dev/null 2>&1 || \
	  { echo "Node.js 20 or newer and npm are needed: apt install nodejs npm, or https://nodejs.org" >&2; exit 1; }
	cd tests/interop && npm ci --no-audit --no-fund
	GDF_INTEROP=1 $(BIN)/python -m pytest tests/interop -m interop -q

# The explorer in a real Chromium: every page in every look, proofs in the browser, screenshots in artifacts/explorer.
# Where npm is installed it fetches axe-core, which looks for barriers.
.PHONY: test-explorer
test-explorer: $(VENV)/.dev
	@if command -v npm >/dev/null 2>&1; then cd tests/e2e/axe && npm ci --no-audit --no-fund; \
	  else echo "npm is not installed; the pages are not shown to axe" >&2; fi
	GDF_EXPLORER=1 GDF_AXE=$$(command -v npm 2>/dev/null) $(BIN)/python -m pytest -m e2e -q \
	  tests/e2e/test_explorer_browser.py tests/e2e/test_explorer_verify.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages of docs/ as a site in artifacts/site; a dead link fails
.PHONY: docs
docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Agreement on many simulated networks, in all cores: make sim SEEDS=20000 FROM=0
.PHONY: sim
SEEDS ?= 20000
FROM ?= 0
sim: $(VENV)/.dev
	$(BIN)/python -m tests.sim.long --seeds $(SEEDS) --from $(FROM)

# Markets on their ledger, people of every kind, in all cores: make sim-market SEEDS=5000 FROM=0
.PHONY: sim-market
sim-market: $(VENV)/.dev
	$(BIN)/python -m tests.sim_market --seeds $(SEEDS) --from $(FROM)

# Real validators on this machine, killed at random while people pay: make torture MINUTES=10 VALIDATORS=7
.PHONY: torture
MINUTES ?= 10
VALIDATORS ?= 4
torture: $(VENV)/.dev
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --validators $(VALIDATORS)

# A market of real nodes on this machine: kills, newcomers, attackers, an owner who is gone: make soak MINUTES=30
.PHONY: soak
soak: export OMP_NUM_THREADS = 1
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

# Every attack on one node of a small market, one after the other, and what came of each: make hostile SECONDS=60
.PHONY: hostile
SECONDS ?= 60
hostile: export OMP_NUM_THREADS = 1
hostile: $(VENV)/.dev
	$(BIN)/python -m tests.hostile --seconds $(SECONDS) $(ARGS)

# Every rule of agreement removed in turn; WRITE=--write stores docs/mutations.md
.PHONY: mutations
mutations: $(VENV)/.dev
	$(BIN)/python -m tests.sim.mutations $(WRITE)

# Damaged and random bytes for every decoder: make fuzz INPUTS=1000000
.PHONY: fuzz
INPUTS ?= 100000
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS)

# Blobs over slow lines: several sources against one, order by measured pace, trouble, set rates; about four minutes
.PHONY: bench-net
bench-net: $(VENV)/.dev
	$(BIN)/python -m benchmarks.network $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.verdicts
	$(BIN)/python -m benchmarks.network_cost

# Where the ledger stands against what limits it, a few minutes: make bench-ledger ENTRIES=10000 for a shorter look
.PHONY: bench-ledger
ENTRIES ?= 100000
bench-ledger: $(VENV)/.dev
	$(BIN)/python -m benchmarks.ledger --entries $(ENTRIES) $(ARGS)

# Every kind of page of the explorer over a ledger of 100,000 entries, beside bare reads of the same rows
.PHONY: bench-explorer
bench-explorer: $(VENV)/.dev
	$(BIN)/python -m benchmarks.explorer --entries $(ENTRIES) $(ARGS)

# Training: codec, capture, speed of a unit, division of rounds, loss at equal tokens.  FAST=1 takes minutes, all of it hours
.PHONY: bench-train
FAST ?=
bench-train: export OMP_NUM_THREADS = 1
bench-train: $(VENV)/.dev
	$(BIN)/python -m benchmarks.train_codec $(if $(FAST),--values 1000000)
	$(BIN)/python -m benchmarks.train_capture $(if $(FAST),--every 8)
	$(BIN)/python -m benchmarks.train_speed $(if $(FAST),--repeats 5)
	$(BIN)/python -m benchmarks.train_split
	$(BIN)/python -m benchmarks.train_loss $(if $(FAST),--fast)

# Attacks on the market beside published defences: FAST=1 takes minutes on digits, all of it hours on Fashion-MNIST
# (Debian's dataset-fashion-mnist; another folder: ARGS="--images FOLDER").  Installs the peers under artifacts/.
.PHONY: bench-defence
bench-defence: export OMP_NUM_THREADS = 1
bench-defence: $(VENV)/.dev
	$(BIN)/python -m benchmarks.defence $(if $(FAST),--fast) $(ARGS)

# Fair pay: merit against exact Shapley values, free-riders, names, what cheating is worth; and how often an honest worker
# is accused.  FAST=1 takes minutes, all of it an hour.  The digits come with scikit-learn, which nothing else needs
.PHONY: bench-fairness
bench-fairness: export OMP_NUM_THREADS = 1
bench-fairness: $(VENV)/.dev
	$(PIP) install --quiet -c constraints.txt scikit-learn >&2
	$(BIN)/python -m benchmarks.fairness $(if $(FAST),--fast)
	$(BIN)/python -m benchmarks.honest_audits $(if $(FAST),--fast)

wheel: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts

# Everything an install says goes to stderr: `make demo ARGS="--headless --json"` prints JSON only.
$(VENV)/.installed: pyproject.toml constraints.txt | prerequisites
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)" >&2
	@$(PIP) install --quiet -c constraints.txt -e . >&2
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.installed
	@$(PIP) install --quiet -c constraints.txt -e ".[dev]" >&2
	@touch $@

# libp2p 0.8.1 needs fastecdsa, which is compiled against GMP where it has no wheel.
prerequisites:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed (found: $$($(PYTHON) --version 2>&1)); run make PYTHON=python3.11 …" >&2; exit 1; }
	@test -e $(VENV)/.installed || { command -v cc >/dev/null 2>&1 || \
	  { echo "a C compiler is needed: apt install build-essential, dnf install gcc, or xcode-select --install" >&2; exit 1; }; }
	@test -e $(VENV)/.installed || printf '#include <gmp.h>\nint main(void) { return 0; }\n' | \
	  cc -x c -fsyntax-only -I/opt/homebrew/include - 2>/dev/null || \
	  { echo "the GMP headers are needed: apt install libgmp-dev, dnf install gmp-devel, or brew install gmp" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is needed: apt install python3-venv" >&2; exit 1; }
