# `make demo` and `make test` set up all that they need. Everything else is for people who work on Downspout itself.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CODE := downspout spouts bolts
# The tests start hundreds of Pythons. Without bytecode each compiles us anew, and each process of pytest all tests too.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo kafka-demo sql-demo batch-demo s3-demo formats-demo windows-demo ui-demo storm-demo spark-demo test check test-all soak soak-ledger chaos storm-chaos partitions soak-real mutants lint types doctest format docs jars bench spark-versions fuzz lock clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(VENV)/.demo: pyproject.toml requirements.lock .ci/venv
	@.ci/venv $(PYTHON) $(VENV) demo && touch $@

$(VENV)/.dev: pyproject.toml requirements.lock .ci/venv
	@.ci/venv $(PYTHON) $(VENV) dev && touch $@ $(VENV)/.demo

$(VENV)/.all: pyproject.toml requirements.lock .ci/venv
	@.ci/venv $(PYTHON) $(VENV) dev-all && touch $@ $(VENV)/.dev $(VENV)/.demo

demo: $(VENV)/.demo  ## the main job on 336,776 real flights: Kafka, spout, bolts, Parquet, PySpark, audit (FRESH=1: start over)
	@$(BIN)/python -m demos --on local $(if $(FRESH),--fresh)

kafka-demo: $(VENV)/.demo  ## from Kafka to Kafka exactly once, through ten kills and two of the broker (FLIGHTS=20000: fewer; KILLS=3)
	@$(BIN)/python -m demos.drill kafka $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(KILLS),--kills $(KILLS))

sql-demo: $(VENV)/.demo  ## from Kafka into SQLite and PostgreSQL exactly once, through ten kills each (FLIGHTS=20000: fewer; KILLS=3)
	@$(BIN)/python -m demos.drill sql $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(KILLS),--kills $(KILLS))

batch-demo: $(VENV)/.demo  ## words and flights counted in batches, opaque and transactional, locally, on Storm and on Spark, through kills (FLIGHTS=20000: fewer; KILLS=3; ENGINES="storm spark")
	@$(BIN)/python -m demos.drill batches $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(KILLS),--kills $(KILLS)) $(if $(ENGINES),--engines $(ENGINES))

s3-demo: $(VENV)/.demo  ## the main job into an S3 bucket exactly once, through five kills, 503 and lost answers; read by four (FLIGHTS=20000: fewer; KILLS=3)
	@$(BIN)/python -m demos.drill s3 $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(KILLS),--kills $(KILLS))

formats-demo: $(VENV)/.demo  ## Avro by a schema registry into Parquet, Delta and Iceberg, each once, each killed five times (FLIGHTS=20000: fewer; KILLS=3)
	@$(BIN)/python -m demos.drill formats $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(KILLS),--kills $(KILLS))

windows-demo: $(VENV)/.demo  ## flights in tumbling and sliding windows of event time, through five kills; final windows compared with DuckDB (FLIGHTS=60000: fewer; KILLS=3)
	@$(BIN)/python -m demos.drill windows $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(KILLS),--kills $(KILLS))

ui-demo: $(VENV)/.demo  ## the main job at a constant rate with some poison, and its web page, until Ctrl-C (RATE=2000; POISON=5000: one of 5,000 records; PORT=8650)
	@$(BIN)/python -m demos.ui $(if $(RATE),--rate $(RATE)) $(if $(POISON),--poison $(POISON)) $(if $(PORT),--port $(PORT))

storm-demo: $(VENV)/.demo  ## the main job on a real Storm: sparse submit, lag 0, audit, nimbus's counters (FLIGHTS=1000: fewer; FRESH=1: publish anew)
	@$(BIN)/python -m demos --on storm $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(FRESH),--fresh)

spark-demo: $(VENV)/.demo  ## the main job on Spark, killed in the middle; and all engines compared (FLIGHTS=20000: fewer; FRESH=1: publish anew)
	@$(BIN)/python -m demos --on spark $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(FRESH),--fresh)

# Tests wait more than they work: for answers, sessions to end, retries to be due, JVMs to start.
JOBS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --doctest-modules $(CODE) tests
# mypy runs beside the tests, and is heard after them. A run that would take longer than CI waits ends with its report.
BESIDE_TYPES = @log=$$(mktemp); $(BIN)/mypy >$$log 2>&1 & types=$$!; $(1); tests=$$?; \
	wait $$types; typed=$$?; echo "mypy: $$(tail -n 40 $$log)"; rm -f $$log; exit $$((tests ? tests : typed))

test: $(VENV)/.dev lint  ## everything that CI runs: each promise once on the real thing, and a sample of each sweep (15 minutes on two cores)
	$(call BESIDE_TYPES,PYTHONHASHSEED=0 LEDGER_EXAMPLES=50 $(PYTEST) --session-timeout=4500 --durations=20)

# HYPOTHESIS_SEED=… repeats the examples and the order of sets; the run prints its seed.
ifndef HYPOTHESIS_SEED
HYPOTHESIS_SEED := $(shell echo $$RANDOM)
endif

test-all: $(VENV)/.all lint  ## all tests, each sweep whole, with new random examples: before a release (an hour and more)
	$(call BESIDE_TYPES,TEST_ALL=1 PYTHONHASHSEED=$(HYPOTHESIS_SEED) LEDGER_EXAMPLES=250 $(PYTEST) --hypothesis-seed=$(HYPOTHESIS_SEED) --session-timeout=14400 --durations=20)

check: $(VENV)/.dev lint types  ## the quick loop, about a minute: no broker, no Spark, no Storm, nothing slow
	LEDGER_EXAMPLES=20 $(PYTEST) -q -m "not broker and not spark and not storm and not slow"

# The state machine runs in parts with a seed each: Hypothesis remembers every example of a run, about 20 KB of it.
SOAK_PARTS ?= 20
SOAK_EXAMPLES ?= 10000
MACHINE := tests/ledger/test_ledger_machine.py

SOAK_SEEDS ?= 10000

soak: $(VENV)/.dev  ## whole topologies in 10,000 simulated worlds (about 40 minutes on two cores; SOAK_SEEDS=1000: fewer)
	$(BIN)/downspout simulate tests/topology/scenarios.py --seeds $(SOAK_SEEDS)
	$(BIN)/downspout simulate tests/topology/batch_scenarios.py --seeds $$(( $(SOAK_SEEDS) / 10 ))

soak-ledger: $(VENV)/.dev  ## the proofs of the ledger at length: larger models, 200,000 examples, a million payloads (hours)
	for part in $$(seq $(SOAK_PARTS)); do \
	  LEDGER_EXAMPLES=$(SOAK_EXAMPLES) $(BIN)/python -m pytest -q --timeout 0 --hypothesis-seed=$$part $(MACHINE) || exit 1; \
	done
	TEST_ALL=1 $(BIN)/python -m pytest -q --timeout 0 tests/ledger --ignore $(MACHINE)

chaos: $(VENV)/.dev  ## kill processes and real brokers, then audit: 270 faults in 45 minutes (MINUTES=5: fewer; SEED=7; BROKERS=3; EMIT=chunk; BUCKET=1: into an S3 server with faults; REPORT=FILE), or TO=kafka: from Kafka to Kafka, TO=batches: batches into states (KILLS=100 FLIGHTS=200000)
ifneq ($(filter kafka batches,$(TO)),)
	@$(BIN)/python -m tools.chaos.to_$(TO) $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))
else
	@$(BIN)/python -m tools.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(EMIT),--emit $(EMIT)) $(if $(BUCKET),--bucket) $(if $(REPORT),--report $(REPORT))
endif

storm-chaos: $(VENV)/.dev  ## kill -9 of workers and components on a real Storm under load, then audit: 20 in 5 minutes (KILLS=20 MINUTES=5 SEED=1; POISON=2: records that kill)
	@$(BIN)/python -m tools.storm_chaos $(if $(KILLS),--kills $(KILLS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(POISON),--poison $(POISON))

partitions: $(VENV)/.dev  ## cut, pause, slow and fill three brokers, three workers and a store on machines of their own, then compare: 20 minutes (SINK=disk, s3, kafka or sql; SEED=7 MINUTES=5; BROKER_PAUSES=10 instead; Linux, root)
	@$(BIN)/python -m tools.partitions $(if $(SINK),--sink $(SINK)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(BROKER_PAUSES),--broker-pauses $(BROKER_PAUSES)) $(if $(REPORT),--report $(REPORT))

soak-real: $(VENV)/.dev  ## the main job at a constant rate on a real broker for 30 minutes: memory, lag, audit (MINUTES=5; RATE=1000)
	@$(BIN)/python -m tools.chaos.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RATE),--rate $(RATE))

FUZZ_S ?= 60
fuzz: $(VENV)/.dev  ## search for input that breaks a parser, FUZZ_S=60 seconds for each (installs atheris)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	for parser in "commit metadata" "dead letter" "log entry" "checkpoint of the log" "offsets in Spark's options" "offsets in a checkpoint" "record batches"; do \
	  $(BIN)/python -m tools.fuzz "$$parser" -max_total_time=$(FUZZ_S) || exit 1; \
	done

mutants: $(VENV)/.all  ## change the code in small ways, and see that tests notice: all of the ledger, samples elsewhere (PACKAGES="sink engine" SAMPLE=100 SEED=1)
	@$(BIN)/python -m tools.mutants $(PACKAGES) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m docs.prose

types: $(VENV)/.dev
	$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.all  ## write the generated tables, and build the docs site in build/site
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.site

jars: $(VENV)/.dev  ## resolve the jars of Kafka and Storm anew, and write down what they must be (downspout/system/jars.json)
	$(BIN)/python -m docs.jars

BENCHES ?= race growth failures commits latency ledger parse producing batches storm spark_source spark_topology

bench: $(VENV)/.dev  ## beside the peers; growth, failures, latency; Storm, Spark; an hour and more (QUICK=1: does it work? BENCHES="race latency")
	@failed=; for bench in $(BENCHES); do $(BIN)/python -m bench.$$bench $(if $(QUICK),--quick) || failed="$$failed $$bench"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

spark-versions: $(VENV)/.dev  ## the source and a topology on every PySpark that is supported, each in a fresh environment (minutes, 500 MB each)
	$(BIN)/python -m tools.spark_versions

lock: $(VENV)/.dev  ## look for the newest versions of all that is installed, and write them down with their hashes
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-annotate \
	  --no-emit-index-url --no-header --extra dev-all pyproject.toml --output-file requirements.lock

clean:  ## forget the virtual environment, state and output; the jar cache stays
	rm -rf $(VENV) .downspout output build dist
