"""The registry of served models by name. Finds families through their entry point."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from izwi.checkpoints.adapter_folder import adapter_ref, check_adapter, is_adapter
from izwi.checkpoints.added import added, added_adapters, default_name, folder_of_gguf, is_gguf
from izwi.checkpoints.folder import read_json
from izwi.checkpoints.gguf_folder import gguf_path
from izwi.checkpoints.hub import DownloadProgress, Report, fetch, is_hub_id
from izwi.errors import CheckpointError, InvalidRequest, ModelNotFound
from izwi.model.capability import Capability
from izwi.model.family import Family
from izwi.model.frontend import (
    ChatFrontend,
    ConversationFrontend,
    Frontend,
    SpeechFrontend,
    TranscriptionFrontend,
    check_capability,
)
from izwi.model.protocol import Model, ModelBackend
from izwi.request.adapter import AdapterRef

ENTRY_POINT = "izwi.models"
# Of `--runner`: izwi's own loop. Any other is the family that reads every checkpoint.
OWN_RUNNER = "izwi"
# Names that an operator may give to a model.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def families() -> dict[str, list[Family]]:
    """Return families by the `model_type` that they load, from all installed distributions.

    Families of the same type are sorted, those with the strictest check first.
    """
    found: dict[str, list[Family]] = {}
    for point in entry_points(group=ENTRY_POINT):
        for family in point.load():
            found.setdefault(family.model_type, []).append(family)
    return {name: sorted(same, key=lambda f: f.fits is None) for name, same in found.items()}


def all_families() -> list[Family]:
    """Return all families of installed distributions."""
    return [family for same in families().values() for family in same]


def embedded() -> dict[str, Path]:
    """Return the checkpoint folders that are part of installed families, by name.

    Families are not imported for it: a supervisor knows none.
    """
    places = (
        Path(place) / "tiny"
        for point in entry_points(group=ENTRY_POINT)
        if (spec := find_spec(point.module))
        for place in spec.submodule_search_locations or ()
    )
    return {
        folder.name: folder
        for place in places
        if place.is_dir()
        for folder in sorted(place.iterdir())
        if (folder / "config.json").is_file()
    }


def family_of(folder: Path, runner: str = OWN_RUNNER) -> Family:
    """Return the family of a checkpoint. Raises CheckpointError.

    Args:
        folder: The checkpoint.
        runner: What runs it; see `runner_family`.
    """
    if runner != OWN_RUNNER:
        return runner_family(runner)
    known = families()
    values = read_json(folder / "config.json")
    # without a model_type, use the saved class name
    saved = values.get("architectures")
    first = saved[0] if isinstance(saved, list) and saved else None
    model_type = str(values.get("model_type", first))
    for family in known.get(model_type, ()):
        if family.fits is None or family.fits(values):
            return family
    raise CheckpointError(f"{folder}: model_type {model_type!r} is not one of {sorted(known)}")


def runner_family(runner: str) -> Family:
    """Return the family whose own engine runs any checkpoint. Raises InvalidRequest."""
    having = [family for family in all_families() if family.has_own_engine]
    for family in having:
        if family.model_type == runner:
            return family
    names = ", ".join([OWN_RUNNER, *(family.model_type for family in having)])
    raise InvalidRequest(f"there is no runner {runner!r}; they are {names}", param="runner")


def load_model(folder: Path, backend: ModelBackend) -> Model:
    """Load a checkpoint's model alone, for an engine without API servers in its process.

    Raises CheckpointError.
    """
    return family_of(folder).load_model(folder, backend)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read from a checkpoint's folder.

    Attributes:
        frontend: The frontend.
        fingerprint: A short text that changes with the checkpoint.
        model: The model; None if the registry has no backend.
        folder: The folder.
        adapter: It is an adapter, and the frontend that of its model; None: it is a checkpoint.
    """

    frontend: Frontend
    fingerprint: str
    model: Model | None = None
    folder: Path = Path()
    adapter: AdapterRef | None = None


class Registry:
    """The frontends of served models by name and, in a process with an engine, the models.

    Args:
        backend: Loads the models; None, in API servers, loads frontends only.
        runner: What runs them; see `family_of`.

    Attributes:
        frontends: The frontends by name.
        models: The models by name, for the engine.
    """

    def __init__(self, backend: ModelBackend | None = None, runner: str = OWN_RUNNER):
        self._backend, self._runner = backend, runner
        self.frontends: dict[str, Frontend] = {}
        self.models: dict[str, Model] = {}
        self._fingerprints: dict[str, str] = {}
        self._folders: dict[str, Path] = {}
        self._served_from: dict[str, Path] = {}
        self._adapters: dict[str, AdapterRef] = {}

    def load(self, source: str, name: str | None = None, *, offline: bool = False) -> str:
        """Load a checkpoint and serve it.

        Args:
            source: A folder, the name of an embedded checkpoint, or a hub id (org/name); a prefix
                `NAME=` sets the name.
            name: Served name; by default the embedded name, the hub id, or the folder's name.
            offline: Never ask the hub; a hub id must be in the local cache.

        Returns:
            The served name.

        Raises:
            ModelNotFound: There is no such checkpoint.
            CheckpointError: The checkpoint is broken; the error names the problem.
        """
        known, folder = named(source, offline=offline)
        self.load_folder(name or known, folder, source)
        return name or known

    def load_folder(self, name: str, folder: Path, source: str) -> None:
        """Load the checkpoint that `named` found for a source, and serve it; raises as `load`."""
        if Path(source).is_dir() or name != source:
            self._folders[name] = folder
        self.serve(name, self.read(folder, name))

    def locate(self, name: str, *, offline: bool = False, report: Report | None = None) -> Path:
        """Return the folder for a name from an untrusted caller; paths are never accepted.

        Args:
            name: Name of a folder that was loaded before, of an embedded checkpoint, or a hub id.
            offline: Never ask the hub.
            report: Called with the progress of the hub's files.

        Raises:
            ModelNotFound: The name is none of these, or the hub has no such id.
        """
        folder = self._folders.get(name) or embedded().get(name) or added().get(name)
        if folder is None and self.base_of(name) in self.frontends:
            folder = added_adapters().get(name.rpartition(":")[2])
        if folder is not None:
            return folder
        if not is_hub_id(name):
            raise ModelNotFound(
                f"no model {name!r}: neither a hub id nor one of "
                f"{', '.join(sorted({*self._folders, *embedded(), *added()}))}",
                param="model",
            )
        if report is not None:
            report(DownloadProgress("downloading"))
        return fetch(name, offline=offline, report=report)

    def read(self, folder: Path, name: str) -> Loaded:
        """Read a checkpoint, or an adapter of a served model, without serving it.

        Args:
            folder: Its folder.
            name: The name that it will have; of an adapter "MODEL:ADAPTER".

        Raises:
            CheckpointError: It is broken, or an adapter of another model.
            ModelNotFound: The adapter's model is not served.
        """
        if is_adapter(folder):
            return self._read_adapter(folder, name)
        family = family_of(folder, self._runner)
        frontend = family.load_frontend(folder)
        model = None if self._backend is None else family.load_model(folder, self._backend)
        return Loaded(frontend, _fingerprint(folder), model, folder)

    def _read_adapter(self, folder: Path, name: str) -> Loaded:
        base = self.base_of(name)
        frontend = self.model(base)
        if base in self._adapters:
            raise ModelNotFound(f"{base!r} is an adapter itself", param="model")
        place = self._served_from[base]
        shapes = family_of(place).read_sizes(place).adaptable
        if not shapes:
            raise CheckpointError(f"{folder}: the model {base!r} takes no adapters")
        check_adapter(folder, shapes)
        ref = adapter_ref(name, folder)
        fingerprint = f"{self._fingerprints[base]}-{ref.digest[:16]}"
        return Loaded(frontend, fingerprint, None, folder, ref)

    @staticmethod
    def base_of(name: str) -> str:
        """Return the name of an adapter's model; empty if the name has none."""
        return name.rpartition(":")[0]

    def adapter(self, name: str) -> AdapterRef | None:
        """Return the adapter that a name stands for; None for a model as it is."""
        return self._adapters.get(name)

    def adapters_of(self, name: str) -> list[str]:
        """Return the names of the served adapters of a model."""
        return [one for one in self._adapters if self.base_of(one) == name]

    def serve(self, name: str, loaded: Loaded) -> None:
        """Serve a model under a name."""
        # New dictionaries: other threads go through the old ones.
        self.frontends = {**self.frontends, name: loaded.frontend}
        self._fingerprints = {**self._fingerprints, name: loaded.fingerprint}
        self._served_from = {**self._served_from, name: loaded.folder}
        if loaded.adapter is not None:
            self._adapters = {**self._adapters, name: loaded.adapter}
        if loaded.model is not None:
            self.models = {**self.models, name: loaded.model}

    def unload(self, name: str) -> None:
        """Remove a model, but keep the location of its folder. Raises ModelNotFound."""
        self.model(name)
        self.frontends = {n: frontend for n, frontend in self.frontends.items() if n != name}
        self.models = {n: model for n, model in self.models.items() if n != name}
        self._adapters = {n: adapter for n, adapter in self._adapters.items() if n != name}

    def names(self) -> list[str]:
        """Names of all models, in the order in which they were loaded."""
        return list(self.frontends)

    def model(self, name: str) -> Frontend:
        """Return the frontend of a model by name.

        Raises:
            ModelNotFound: No such model is served.
        """
        if name not in self.frontends:
            raise ModelNotFound(f"no model {name!r} is served here", param="model")
        return self.frontends[name]

    def fingerprint(self, name: str) -> str:
        """Return a short text that changes with the checkpoint, as a cache key of its results.

        Raises:
            ModelNotFound: No such model is served.
        """
        self.model(name)
        return self._fingerprints[name]

    def speech(self, name: str) -> SpeechFrontend:
        """Return the frontend of a model that speaks.

        Raises:
            ModelNotFound: No such model is served.
            InvalidRequest: The model does not speak.
        """
        return cast(SpeechFrontend, self._able(name, Capability.SPEAK))

    def transcription(self, name: str) -> TranscriptionFrontend:
        """Return the frontend of a model that transcribes; raises as `speech` does."""
        return cast(TranscriptionFrontend, self._able(name, Capability.TRANSCRIBE))

    def chat(self, name: str) -> ChatFrontend:
        """Return the frontend of a model that answers in text; raises as `speech` does."""
        return cast(ChatFrontend, self._able(name, Capability.CHAT))

    def conversation(self, name: str) -> ConversationFrontend:
        """Return the frontend of a speech-to-speech model; raises as `speech` does."""
        return cast(ConversationFrontend, self._able(name, Capability.CONVERSE))

    def default(self, capability: Capability) -> str:
        """Return the name of the first model with a capability.

        Raises:
            ModelNotFound: No model has it.
        """
        for name, frontend in self.frontends.items():
            if capability in frontend.capabilities:
                return name
        raise ModelNotFound(f"no model for {capability} is served here", param="model")

    def _able(self, name: str, capability: Capability) -> Frontend:
        model = self.model(name)
        check_capability(name, model, capability)
        return model


def find(source: str, *, offline: bool = False) -> Path:
    """Return the folder of a checkpoint: a path, an embedded or added name, or a hub id to fetch.

    Raises:
        ModelNotFound: There is no such checkpoint, or the hub cannot be reached.
        CheckpointError: A GGUF file is broken.
    """
    path = Path(source).expanduser()
    if source and path.is_dir():  # an empty name would be the current folder
        return path
    if is_gguf(path):
        return folder_of_gguf(path, all_families())
    here = {**added(), **embedded()}
    if source in here:
        return here[source]
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ModelNotFound(
            f"no checkpoint {source!r}: neither a folder, a GGUF file, a hub id like "
            f"Qwen/Qwen3-ASR-0.6B, nor one of {', '.join(sorted(here))}",
            param="model",
        )
    return fetch(source, offline=offline)


def named(source: str, *, offline: bool = False) -> tuple[str, Path]:
    """Return the name under which a checkpoint is served, and its folder.

    Args:
        source: As for `find`, optionally after `NAME=`. Without a name, the embedded name, the hub
            id or the folder's name is used.
        offline: Never ask the hub.

    Raises as `find`.
    """
    name, equals, rest = source.partition("=")
    path = Path(source).expanduser()
    if equals and _NAME.fullmatch(name) and not path.exists():
        return name, find(rest, offline=offline)
    folder = find(source, offline=offline)
    is_path = Path(source).is_dir() or is_gguf(path)
    return default_name(path) if is_path else source, folder


def _fingerprint(folder: Path) -> str:
    """Return a hash of the configuration, and of the ends and sizes of the weight files.

    It includes files of other checkpoints' folders that an index refers to.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    found = set(folder.rglob("*.safetensors"))
    for index in folder.rglob("*.safetensors.index.json"):
        found.update(index.parent / name for name in read_json(index)["weight_map"].values())
    if (packed := gguf_path(folder)) is not None:
        found.add(packed)
    for path in sorted(found):
        with path.open("rb") as file:
            digest.update(file.read(1 << 16))
            size = file.seek(0, 2)
            file.seek(max(0, size - (1 << 16)))
            digest.update(file.read() + str(size).encode())
    return digest.hexdigest()[:16]
