"""Options that several commands share.

Exit codes and failure messages are in `izwi_api.console`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from izwi.errors import InvalidRequest

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, mlx, or auto for the best one.")]
Dtype = Annotated[
    str, typer.Option(help="float32, bfloat16, float16, or auto for the device's default.")
]
WeightsOption = Annotated[
    str,
    typer.Option(
        help="Quantize the decoders' weights: int8, fp8, int4; auto: as the checkpoint has them; "
        "float: widen those that it packs."
    ),
]
KvDtypeOption = Annotated[str, typer.Option(help="Keys and values: auto, int8 or fp8.")]
DeviceMibOption = Annotated[
    int, typer.Option(min=0, help="Device memory to use, weights included; 0: as much as is free.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Never contact the Hugging Face hub.")]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="IZWI_SERVER",
        show_default=False,
        help="Address of the server to use, or none to run in this process. Default: the server at "
        "http://127.0.0.1:8000, if one runs there with the models needed.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", envvar="IZWI_API_KEY", show_default=False, help="API key for the server."
    ),
]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, max=2.0, help="0 is greedy. Default: the model's.")
]
Seed = Annotated[
    int | None,
    typer.Option(help="The same seed gives the same answer. Default: a different one each time."),
]


def check_seed(seed: int | None) -> None:
    """Raise InvalidRequest if a seed does not fit in 64 bits."""
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise InvalidRequest("the seed must fit in 64 bits", param="seed")


class Command(TyperCommand):
    """A command whose help shows flags without a type: `--offline`, not `--offline <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; flags have no placeholder for a value."""
        return _without_flag_types(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """A group of commands; its help shows flags as `Command` does."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; flags have no placeholder for a value."""
        return _without_flag_types(super().get_params(ctx))


def _without_flag_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) or getattr(param, "is_bool_flag", False):
            param.metavar = ""
    return params


class ListByDefault(CommandGroup):
    """A command with subcommands; without one, it runs `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `list` before its options; an unknown subcommand is still an error."""
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)
