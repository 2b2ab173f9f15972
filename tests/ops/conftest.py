"""Products in full on a GPU: cuDNN would round what MLX is compared with to ten bits."""

import torch

torch.backends.cudnn.allow_tf32 = False
