# Two commands do all the set-up: `make up` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
export PYTHON
BIN := .venv/bin

.PHONY: help up setup dev test test-redis7 lint types check wheel-check soak soak-batch deterministic chaos conformance bench-queue bench-readers bench-stalled bench-start bench-structured bench-batch bench-engine bench-decode bench-speculation bench-peers bench-overload bench-policies soak-memory gpu-check format constraints clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

up: setup ## start the whole service: embedded server, gateway, one worker, a real model
	@exec $(BIN)/headway up $(ARGS)

setup: ## install what `make up` needs into .venv
	@ops/setup run

dev: ## install what tests, linters and type checkers need into .venv
	@ops/setup dev

test: dev ## run the tests
	@$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

test-redis7: dev ## the fault suites on Redis 7.0 too (the contract suite runs on every server in `make test`)
	@HEADWAY_TEST_SERVER=redis7 $(BIN)/pytest tests/faults/worker $(ARGS)

lint: dev ## ruff: format and rules
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: dev ## mypy strict and pyright strict
	@$(BIN)/mypy && $(BIN)/pyright

wheel-check: dev ## build the wheel, compare its file list, use it as a bare client
	@$(BIN)/python ops/wheel_check.py

check: lint types test wheel-check ## everything that CI runs

soak: dev ## random walks of 10⁶ steps and every mutant (about 25 minutes on one core)
	@$(BIN)/pytest -m soak --timeout=0 $(ARGS)

deterministic: dev ## 50 answers of the demo model, bit for bit alone, in batches, preempted and resumed (about 15 minutes)
	@$(BIN)/pytest -m soak --timeout=0 tests/engine/test_deterministic_smollm2.py $(ARGS)

soak-batch: dev ## 50,000 lines, 200 MB, on the scripted model while its Celery workers are killed 20 times (about 8 minutes)
	@$(BIN)/python -m tests.services.batch.soak $(ARGS)

chaos: dev ## jobs stream while workers, server, network and clocks fail (21 minutes; ARGS="--seed 7 --seconds 60")
	@$(BIN)/python -m tests.chaos $(ARGS)

conformance: dev ## 20,000 generated calls held against /openapi.json, three clients on the demo model (about 6 minutes)
	@$(BIN)/pytest -m soak --timeout=0 tests/conformance
	@$(BIN)/python -m tests.conformance $(ARGS)

bench-queue: setup ## what the queue costs its server, and what streaming through it costs the engine (about 5 minutes)
	@is_missed=0; \
	$(BIN)/python ops/bench/queue_cost.py || is_missed=1; \
	$(BIN)/python ops/bench/stream_cost.py || is_missed=1; \
	exit $$is_missed

bench-batch: setup ## how much later a chat's first token comes while a batch of 200 lines runs (about 9 minutes)
	@$(BIN)/python ops/bench/batch_beside.py $(ARGS)

bench-stalled: setup ## does a reader that stops reading slow anybody else down? (about 2 minutes)
	@$(BIN)/python ops/bench/stalled_reader.py $(ARGS)

bench-readers: setup ## 2,000 streams on one gateway: none lost, how late a token is, what each takes (about 2 minutes)
	@$(BIN)/python ops/bench/readers.py $(ARGS)

soak-memory: setup ## does a worker's memory grow under half an hour of mixed jobs?
	@$(BIN)/python ops/bench/memory_soak.py $(ARGS)

gpu-check: setup ## every kernel and the engine on this machine's GPU, against the CPU and the chip's limits (under 8 minutes)
	@$(BIN)/python ops/gpu_check $(ARGS)

bench-start: setup ## how long `headway up` takes, the first time and the second, and what of it goes where (about 2 minutes)
	@$(BIN)/python ops/bench/start.py $(ARGS)

bench-structured: setup ## what it costs to hold 16 answers to a JSON Schema, in turns with free ones (about 5 minutes)
	@$(BIN)/python ops/bench/structured.py $(ARGS)

bench-engine: setup ## the engine alone: tokens per second and per-step budget by kernels and weights (about 10 minutes)
	@$(BIN)/python ops/bench/engine.py $(ARGS)

bench-decode: setup ## a decode step of one sequence against what its weights take to be read here (about half a minute)
	@$(BIN)/python ops/bench/decode_limit.py $(ARGS)

bench-speculation: setup ## prompt lookup against plain decoding, in turns: 1.3 times as fast where texts repeat, 0.97 at least elsewhere (about 2 minutes)
	@$(BIN)/python ops/bench/speculation.py $(ARGS)

bench-peers: setup ## our full path against vLLM, llama.cpp and OpenVINO, installed on the way; transformers and Celery where they are there (about an hour, two with Celery)
	@$(BIN)/python ops/bench/peers.py $(ARGS)

bench-overload: setup ## does goodput hold at three times the load that the service bears, for five minutes? (about 9 minutes)
	@$(BIN)/python ops/bench/overload.py $(ARGS)

bench-policies: setup ## static against continuous batching from idle to overload (25 minutes; ARGS="--trace AZURE.csv"; --arms for all four policies)
	@$(BIN)/python ops/bench/static_against_fair.py $(ARGS)

format: dev ## let ruff format and fix
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

constraints: dev ## write the installed versions to constraints.txt
	@$(BIN)/python ops/write_constraints

clean: ## remove the environment and all caches
	rm -rf .venv build dist *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
