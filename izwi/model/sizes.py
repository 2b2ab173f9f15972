"""What a model takes of a device, known from its configuration before any weight is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from izwi.model.encoders import EncoderSizes, Encodes, EncodesPadded, EncodesWhole
from izwi.model.layers import CacheSpec
from izwi.model.protocol import Model
from izwi.model.tracks import CodecSizes, frame_track
from izwi.ops.ranks import Part

# Shapes of the tensors of one file, or of one folder, by name.
TensorShapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class ModelSizes:
    """The sizes of a model, from which the memory of a device is planned.

    Attributes:
        layers: The state that each layer keeps for a sequence.
        max_positions: Maximum number of positions of the checkpoint.
        vocabularies: Ids of codebook 0 of each track.
        codec: The codec of the track with audio, or None.
        encodes: Whether the model implements `izwi.model.encoders.Encodes`.
        encoders: Its audio encoders that take padded pieces.
        whole_encoders: Its encoders that take pieces as they are, and have no graphs.
        weights: Shapes of all tensors; of a model that is loaded, none.
        packable: Names of matrices that may stay packed: see `ModelBackend.load_weights`.
        adaptable: Shapes (out, in) of the weights that adapters may change, by name.
    """

    layers: tuple[CacheSpec, ...]
    max_positions: int
    vocabularies: tuple[int, ...]
    codec: CodecSizes | None = None
    encodes: bool = False
    encoders: tuple[EncoderSizes, ...] = ()
    whole_encoders: tuple[EncoderSizes, ...] = ()
    weights: tuple[TensorShapes, ...] = ()
    packable: frozenset[str] = frozenset()
    adaptable: TensorShapes = field(default_factory=dict)

    def of_parts(self, parts: Mapping[str, Part]) -> ModelSizes:
        """Return the same with parts of some tensors, which then do not stay packed."""
        if not parts:
            return self
        weights = tuple(
            {
                name: parts[name].shape(shape) if name in parts else shape
                for name, shape in file.items()
            }
            for file in self.weights
        )
        return replace(self, weights=weights, packable=frozenset())

    @staticmethod
    def from_model(model: Model) -> ModelSizes:
        """Return the sizes of a loaded model, without its weights."""
        tracks = model.tracks
        frames = frame_track(tracks)
        return ModelSizes(
            model.layers,
            model.max_positions,
            tuple(track.vocabulary for track in tracks),
            None if frames is None else tracks[frames].codec,
            isinstance(model, Encodes),
            tuple(model.padded_encoders.values()) if isinstance(model, EncodesPadded) else (),
            tuple(model.whole_encoders) if isinstance(model, EncodesWhole) else (),
        )
