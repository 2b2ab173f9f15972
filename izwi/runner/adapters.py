"""The adapters of one model that are on the device."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

from izwi.checkpoints.adapter_folder import adapter_ref, read_adapter
from izwi.errors import CheckpointError, InvalidRequest
from izwi.model.adapters import (
    MatrixUpdate,
    ProductUpdates,
    RowUpdates,
    TakesAdapters,
    on_device,
)
from izwi.model.protocol import Model
from izwi.model.step_batch import Row
from izwi.ops.protocol import Array, AttentionContext, Ops
from izwi.request.adapter import AdapterRef

# Adapters that stay on the device without a request that uses them.
_MOST_KEPT = 8


class Adapters:
    """Reads adapters when they are asked for, and keeps those used last.

    A sequence holds its own, so that one that is forgotten here stays until its requests end.
    """

    def __init__(self, model: Model, ops: Ops):
        self._stack = model.adapted if isinstance(model, TakesAdapters) else None
        self._ops = ops
        self.are_used = False  # whether there was ever a request with an adapter
        self._kept: dict[str, ProductUpdates] = {}  # by digest, the one used last at the end
        # by digest: read ahead, and not on the device yet
        self._read: dict[str, Mapping[str, MatrixUpdate] | InvalidRequest] = {}

    def lacks(self, ref: AdapterRef) -> bool:
        """Return whether `load` would read an adapter's files."""
        return ref.digest not in self._kept and ref.digest not in self._read

    def read(self, ref: AdapterRef) -> None:
        """Read an adapter's files for the next `load`, which raises what is wrong with them.

        May run in any thread.
        """
        if not self.lacks(ref):
            return
        found: Mapping[str, MatrixUpdate] | InvalidRequest
        try:
            found = self._matrices(ref)
        except InvalidRequest as error:
            found = error
        self._read[ref.digest] = found

    def load(self, ref: AdapterRef) -> ProductUpdates:
        """Return an adapter; it is put on the device if it is not there.

        Raises:
            InvalidRequest: The model or the device takes none, or its files are broken or others
                than those that were named.
        """
        updates, found = self._kept.pop(ref.digest, None), self._read.pop(ref.digest, None)
        if updates is None:
            if isinstance(found, InvalidRequest):
                raise found
            updates = on_device(self._ops, self._matrices(ref) if found is None else found)
        self._kept[ref.digest] = updates
        self.are_used = True
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return updates

    def _matrices(self, ref: AdapterRef) -> Mapping[str, MatrixUpdate]:
        if self._stack is None:
            raise InvalidRequest("this model takes no adapters", param="model")
        if self._ops.ranks.count > 1:
            message = "adapters are not supported with --tensor-parallel"
            raise InvalidRequest(message, param="model")
        try:
            if adapter_ref(ref.name, Path(ref.folder)).digest != ref.digest:
                raise CheckpointError(f"{ref.folder} has changed since the adapter was loaded")
            matrices = read_adapter(Path(ref.folder), self._stack.adaptable)
        except CheckpointError as error:  # its message has paths: only for the log
            message = f"the adapter {ref.name!r} cannot be used; the engine's log says why"
            raise InvalidRequest(message, param="model") from error
        return self._stack.product_matrices(matrices)

    def run(self, rows: Seq[Row], x: Array, context: AttentionContext) -> Array:
        """Run the positions of rows, of which some have adapters, as `Model.run`."""
        assert self._stack is not None
        return self._stack.run(x, context, RowUpdates(self._ops, rows))
