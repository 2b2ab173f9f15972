"""One thread for torch: tiny models are all overhead, and the cores are shared with servers."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)

# what the command line is tested with does its own work, whatever server a developer runs
os.environ["IZWI_SERVER"] = "none"

# read when triton is imported, by whatever test is first: without a GPU its kernels are interpreted
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# `HYPOTHESIS_PROFILE=nightly make unit ARGS=tests/engine` looks twenty times harder
settings.register_profile("test", max_examples=100, deadline=None)
settings.register_profile("nightly", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
