"""`WeightSource`: weights on disk under native names, whatever folder format they are in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.registry import describe_readable, find_source, full_name
from worldsmith.checkpoint.sources.first_weights import LOAD_PATH
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World
from worldsmith.models.lora import is_adapter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FILES = ("*.safetensors", "*.json")
OURS = (
    "expected a run folder, a checkpoints/iter_… folder or its model folder, what `worldsmith convert` or `worldsmith "
    "export` wrote"
)


class WeightSource(ABC):
    """Names and shapes of stored weights, and reading them tensor by tensor, whole or each rank its own shard.

    Names are native and without the `net.` of training checkpoints. Nothing is read before it is asked for.
    """

    path: Path
    """The folder that holds the tensors."""
    describe: str
    """What it is, for people."""
    family: str = ""
    """The family of the model; empty where nothing says it."""
    settings: dict[str, Any]
    """What the source says about its network, by the network's field names; may be empty."""
    converters: Sequence[str] = ()
    """The classes of converters that its network was trained with, and that go on with it."""
    shapes: dict[str, list[int]]
    """The live weights, those included that are copies of others (`copies`)."""
    average_shapes: dict[str, list[int]]
    """The averaged (EMA) weights. Where only trained weights are averaged, the live ones stand in for the others."""
    copies: dict[str, str]
    """Weights that the format does not hold, and which one they are made equal to."""
    adapter_alpha: float | None = None
    """The alpha of its adapters (LoRA); None where there are none, or nothing says it."""
    unknown: list[str]
    """Tensors that are in the folder and no part of such a network, such as a vision encoder's."""

    def lacks_by_nature(self, name: str) -> bool:
        """Whether a source of this kind never has this weight, which then starts from its initial value."""
        return is_adapter(name) and not any(is_adapter(other) for other in self.shapes)

    def shape(self, name: str, *, average: bool = False) -> list[int] | None:
        """The stored shape; None when the source has no such weight."""
        own = self.average_shapes.get(name) if average else None
        return own if own is not None else self.shapes.get(name)

    @abstractmethod
    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        """Fills tensors, sharded ones (DTensor) with this rank's part, converting to their dtype.

        With `average` an averaged weight is taken where there is one. `no_dist=False`: all ranks call this together.
        Raises UserError for files that cannot be read.
        """

    def read(self, name: str, *, average: bool = False) -> Tensor:
        """One whole weight in main memory, in the dtype in which it is stored."""
        import torch

        shape = self.shape(name, average=average)
        if shape is None:
            raise KeyError(f"{self.describe} has no weight {name}")
        value = torch.empty(shape, dtype=self.dtype(name, average=average))
        self.read_into({name: value}, average=average)
        return value

    @abstractmethod
    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        """The dtype in which a weight is stored."""


def open_weights(
    path: str | Path, *, field: str = LOAD_PATH, family: str = "", world: World | None = None
) -> WeightSource:
    """The weights at a local path, in the Hugging Face cache or on the hub (see `local_folder`).

    A folder that several families can read is taken as one of `family`. Files with checksums are read once and
    verified; the ranks of `world`, which call this together, share that.
    Raises FileNotFoundError when there are none, UserError for a file or a folder that is damaged or not understood.
    """
    from worldsmith.checkpoint.sources.checkpoint_weights import find_model_folder, open_checkpoint
    from worldsmith.checkpoint.sources.safetensors_weights import has_safetensors, open_safetensors
    from worldsmith.checkpoint.sources.verify import require_whole
    from worldsmith.models.model_files import local_folder

    root = local_folder(full_name(str(path)), file_patterns=FILES, field=field)
    foreign = find_source(root)
    if root.is_file() and foreign is None:
        raise UserError(f"{field} {path} is a file; {OURS}, or {describe_readable()}")
    world = world or World()
    require_same_kind(root, world, field=field)
    if foreign is not None:
        if root.is_dir():
            require_whole(root, world)
        return foreign()
    model_folder = find_model_folder(root, world)
    if model_folder is not None:
        return open_checkpoint(model_folder, world=world)
    if has_safetensors(root):
        require_whole(root, world)
        return open_safetensors(root, family)
    raise FileNotFoundError(f"{field} {path}: no checkpoint in this folder; {OURS}, or {describe_readable()}")


def require_weights(path: str, *, field: str, family: str = "") -> None:
    """Raises like `open_weights` for a place without weights; reads no tensor and downloads nothing."""
    from worldsmith.checkpoint.run.folders import checkpoint_folders
    from worldsmith.checkpoint.sources.checkpoint_weights import own_model_folder
    from worldsmith.checkpoint.sources.safetensors_weights import has_safetensors, open_safetensors
    from worldsmith.models.model_files import look_for

    root = look_for(full_name(path), file_patterns=FILES, field=field)
    if root is None:  # the hub has it
        return
    foreign = find_source(root)
    if foreign is not None:
        foreign()
        return
    if root.is_file():
        raise UserError(f"{field} {path} is a file; {OURS}, or {describe_readable()}")
    if own_model_folder(root) is not None or any(checkpoint_folders(place) for place in (root, root / "checkpoints")):
        return
    if not has_safetensors(root):
        raise FileNotFoundError(f"{field} {path}: no checkpoint in this folder; {OURS}, or {describe_readable()}")
    open_safetensors(root, family)


def require_same_kind(root: Path, world: World, *, field: str) -> None:
    """Raises UserError, on all ranks, when what they see in a folder is not opened in the same way: copies on nodes."""
    from worldsmith.checkpoint.sources.checkpoint_weights import own_model_folder
    from worldsmith.checkpoint.sources.safetensors_weights import has_safetensors

    model = own_model_folder(root)
    kind = "safetensors" if has_safetensors(root) else "a run"
    if find_source(root) is not None:
        kind = "a checkpoint of another program"
    if model is not None:
        kind = f"weights in {model.relative_to(root)}/"
    kinds = world.gather(kind)
    other = next((rank for rank, found in enumerate(kinds) if found != kinds[0]), None)
    if other is not None:
        raise UserError(
            f"{field} {root}: process 0 finds {kinds[0]} there and process {other} {kinds[other]}; copy it to all nodes"
        )
