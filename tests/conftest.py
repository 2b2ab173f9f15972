"""One thread for torch: tiny models are all overhead, and the cores are shared with servers."""

import torch

torch.set_num_threads(1)
