"""Benchmarks: each script answers one question and writes JSON to benchmarks/results/."""

import os

# as `izwi` itself does, see izwi_api/cli/run.py
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
