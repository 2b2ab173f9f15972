# Each recipe says how to do one thing. `make serve` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test nightly check lint format types arch unit wheel constraints bench bench-gpu profile mutants clean

serve: $(VENV)/.runtime
	$(BIN)/izwi serve $(ARGS)

# everything that CI asks for; `make unit ARGS=tests/engine/test_engine.py` runs one file. Servers of tests
# that run side by side share the processor: what failed there must pass alone, and is named.
test: check wheel
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS) \
		|| $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -rA $(ARGS)

check: lint types arch

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

arch: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

# all tests, every property on twenty times as many examples, with the newest of every dependency
nightly:
	rm -rf build/nightly && $(PYTHON) -m venv build/nightly
	build/nightly/bin/pip install --quiet --editable '.[dev]'
	HYPOTHESIS_PROFILE=nightly build/nightly/bin/python -m pytest -m "" --timeout 7200 $(ARGS)

# write down the newest versions that go together; run it on Linux with Python 3.11
constraints: $(VENV)/.dev
	mkdir -p build
	$(BIN)/pip install --dry-run --quiet --ignore-installed --report build/resolved.json '.[dev,mutants]'
	$(BIN)/python -m tests.contract.write_constraints build/resolved.json > build/constraints.txt
	mv build/constraints.txt constraints.txt

# build the wheel, install it where nothing else is, and let it speak and listen
wheel: $(VENV)/.dev
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m build --wheel --outdir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/pip install --quiet --constraint constraints.txt build/wheel/*.whl
	cd build/wheel && venv/bin/python ../../tests/contract/check_wheel.py

# what runs anywhere; the loops over HTTP ask a server of the embedded voice where there is no GPU
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.frame_time
	$(BIN)/python -m benchmarks.engine_loop
	$(BIN)/python -m benchmarks.closed_loop
	$(BIN)/python -m benchmarks.open_loop
	$(BIN)/python -m benchmarks.first_audio
	$(BIN)/python -m benchmarks.transcribe_speed
	$(BIN)/python -m benchmarks.asr_throughput --http

# on a machine with a GPU: the kernels are right, recorded steps say what plain ones say, and how fast
bench-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m "" tests/ops tests/runner/test_encoder_graphs.py tests/runner/test_voice_graphs.py \
		tests/models/test_cuda.py tests/models/test_device.py
	$(BIN)/python -m benchmarks.frame_time
	$(BIN)/python -m benchmarks.closed_loop
	$(BIN)/python -m benchmarks.closed_loop --size tts-0.6b --streams 64
	$(BIN)/python -m benchmarks.open_loop
	$(BIN)/python -m benchmarks.encode_time
	$(BIN)/python -m benchmarks.asr_throughput --http
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.gpu_table

# trace one request of each kind; ARGS="--device cuda"
profile: $(VENV)/.dev
	$(BIN)/python -m benchmarks.profile_requests $(ARGS)

# plant small faults and count those that the tests notice: docs/mutants.md; ARGS="--minutes 240" nightly
mutants: $(VENV)/.mutants
	$(BIN)/python -m tests.mutation $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/.runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.runtime

$(VENV)/.mutants: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,mutants]'
	touch $@ $(VENV)/.dev $(VENV)/.runtime
