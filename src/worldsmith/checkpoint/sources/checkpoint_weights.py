"""Weights in a training checkpoint, or in the `model/` folder that `worldsmith convert` makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.dcp.parts import METADATA, load_part
from worldsmith.checkpoint.formats.registry import formats_of
from worldsmith.checkpoint.run.folders import find_latest
from worldsmith.checkpoint.run.frozen_weights import is_partial, require_same
from worldsmith.checkpoint.sources.verify import WEIGHTS, has_checksums, require_whole
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.yaml.text import read_yaml
from worldsmith.distributed.world import World
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.converters.converter import lasting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LIVE, AVERAGE = "net.", "net_ema."
RUN_CONFIG = "config.yaml"
ABOUT = "worldsmith.json"
"""What an exported or converted folder says about itself."""


class CheckpointWeights(WeightSource):
    """A folder of torch.distributed.checkpoint with `net.*` and perhaps `net_ema.*`.

    `below` gives the weights that a checkpoint of trained weights only leaves out.
    """

    def __init__(self, folder: Path, model: Any = None, below: WeightSource | None = None) -> None:
        """`model` is the section of that name in the config of the run; None where it is not known."""
        from worldsmith.checkpoint.dcp.reader import read_entries

        self.path: Path = folder
        self.family, self.settings, self.below = *read_model(model, folder.parent), below
        self.converters = lasting(model)
        self.describe = f"checkpoint {folder.parent if folder.name == 'model' else folder}"
        self.entries = read_entries(folder)
        stored = {name: list(entry.size) for name, entry in self.entries.items()}
        self.average_shapes = without_prefix(stored, AVERAGE)
        self.own = without_prefix(stored, LIVE)
        self.shapes = {**(below.shapes if below else {}), **self.own}
        self.copies = {}
        self.unknown = [name for name in stored if not name.startswith((LIVE, AVERAGE))]

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        state, rest = {}, {}
        for name, tensor in tensors.items():
            if average and name in self.average_shapes:
                state[AVERAGE + name] = tensor
            elif name in self.own:
                state[LIVE + name] = tensor
            else:
                rest[name] = tensor
        if state:
            load_part(self.path, state, no_dist=no_dist)
        if rest:
            if self.below is None:
                raise KeyError(f"{self.describe} has no weight {next(iter(rest))}")
            self.below.read_into(rest, no_dist=no_dist)

    def check_frozen(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Raises UserError when the weights below are not those on which a checkpoint of trained weights was trained.

        `tensors` are weights that were read already; without them each is read for this. Nothing is checked when a
        part of them was not wanted.
        """
        if self.below is None:
            return
        frozen = [name for name in self.below.shapes if name not in self.own]
        values = ReadOnAccess(self, frozen) if tensors is None else {n: tensors[n] for n in frozen if n in tensors}
        if len(values) == len(frozen):
            require_same(self.path.parent, values, source=self.below.describe)

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        key = AVERAGE + name if average and name in self.average_shapes else LIVE + name
        if key not in self.entries and self.below is not None:
            return self.below.dtype(name)
        dtype: torch.dtype = self.entries[key].properties.dtype
        return dtype


class ReadOnAccess(Mapping[str, "Tensor"]):
    """Weights of a source that are in memory only while they are looked at."""

    def __init__(self, source: WeightSource, names: Sequence[str]) -> None:
        self.source, self.names = source, names

    def __getitem__(self, name: str) -> Tensor:
        return self.source.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def find_model_folder(root: Path, world: World) -> Path | None:
    """The model folder to read from: `root`, that of an iter folder or base checkpoint, or of a run's newest whole one.

    None when there is none of these. Checksums are verified, by all ranks together: a damaged checkpoint of a run is
    passed over with a warning, any other is a UserError.
    """
    model = own_model_folder(root)
    if model is not None:
        if model.name == "model":  # else what lies beside it has nothing to do with it
            require_whole(model.parent, world, only=WEIGHTS)
        return model
    for checkpoints in (root, root / "checkpoints"):
        latest = find_latest(checkpoints, world, weights_only=True)
        if latest is not None:
            return latest / "model"
    return None


def own_model_folder(root: Path) -> Path | None:
    """`root`, or the model folder in it: one that DCP has written, or of which checksums say so."""
    for model in (root, root / "model"):
        if (model / METADATA).is_file() or (model.name == "model" and model.is_dir() and has_checksums(model.parent)):
            return model
    return None


def open_checkpoint(
    model_folder: Path,
    tree: Mapping[str, Any] | None = None,
    *,
    base: str | None = None,
    world: World | None = None,
) -> CheckpointWeights:
    """The weights in a model folder; the run's config says what network they belong to and where the rest of them is.

    `tree` is that config as plain data; None: the one that is kept with the checkpoint. `base` is where the rest is
    now; None: where the config says. Raises UserError when a checkpoint of trained weights only cannot find the others.
    """
    tree = tree or run_tree(model_folder)
    if tree is None:
        about = model_folder.parent / ABOUT
        return CheckpointWeights(model_folder, read_json_object(about).get("model") if about.is_file() else None)
    below = None
    if is_partial(model_folder.parent):
        from worldsmith.checkpoint.sources.start_weights import start_of_run

        try:
            below = start_of_run(tree, base=base, world=world)
        except FileNotFoundError as error:
            raise UserError(
                f"{model_folder.parent} holds trained weights only, and the others are not there: {error}. `worldsmith "
                "export`, `generate` and `evaluate` take their place with --base DIR"
            ) from error
    return CheckpointWeights(model_folder, tree["model"], below)


def run_tree(model_folder: Path) -> dict[str, Any] | None:
    """The config of the run that wrote a model folder: kept with the checkpoint, else that of the run folder."""
    for file in (model_folder.parent / RUN_CONFIG, *(p / RUN_CONFIG for p in model_folder.parents[2:3])):
        if file.is_file():
            tree = read_yaml(read_config_text(file), str(file)).data
            model = tree.get("model") if isinstance(tree, dict) else None
            if isinstance(model, dict) and isinstance(model.get("config"), dict):
                return tree
    return None


def read_model(model: Any, place: Path) -> tuple[str, dict[str, Any]]:
    """The family and the network's settings that a `model` section states. Raises UserError, naming the place."""
    try:
        config = section(section({"model": model}, "model"), "config")
        family = str((model or {}).get("name", "")) if config else ""
        return family, formats_of(family).settings_of(config) if family else {}
    except ValueError as error:
        raise UserError(f"{place}: {error}") from error


def without_prefix(shapes: Mapping[str, list[int]], prefix: str) -> dict[str, list[int]]:
    return {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
