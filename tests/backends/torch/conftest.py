"""Where there is no GPU the kernels run in Triton's interpreter; without Triton, not at all."""

import importlib.util
from typing import Any

import torch

from tests.backends.torch.interpreter import hasten

# cuDNN would round what the kernels are compared with to ten bits
torch.backends.cudnn.allow_tf32 = False

HAS_TRITON = importlib.util.find_spec("triton") is not None
collect_ignore_glob = [] if HAS_TRITON else ["test_triton_*.py"]


def _let_scalars_bound_loops() -> None:
    """The interpreter of Triton 3.6 keeps scalars as arrays of one number.

    As the bounds of a loop these must become an int, which numpy refuses since 2.4.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_with_index


if HAS_TRITON and not torch.cuda.is_available():
    _let_scalars_bound_loops()
    hasten()
