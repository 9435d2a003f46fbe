"""Opens the weights at a path, in any supported format, and the initial weights of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.dcp.dcp_folder import METADATA
from worldsmith.checkpoint.formats.weight_formats import describe_readable, find_source, full_name, weight_formats
from worldsmith.checkpoint.run.find_checkpoint import checkpoint_folders, find_latest
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT, RUN_CONFIG, CheckpointWeights
from worldsmith.checkpoint.sources.first_weights import LOAD_PATH, start_in
from worldsmith.checkpoint.sources.remote_model import fetch_model, fetched, pinned
from worldsmith.checkpoint.sources.safetensors_weights import has_safetensors, open_safetensors
from worldsmith.checkpoint.sources.verify import WEIGHTS, has_checksums, require_intact
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree.references import resolve
from worldsmith.config.yaml.yaml_text import read_yaml
from worldsmith.distributed.world import World
from worldsmith.files.json_file import read_json_object
from worldsmith.files.remote import in_store
from worldsmith.models.fill_parameters import fill
from worldsmith.models.lora import is_adapter
from worldsmith.models.model_files import find_without_download, local_folder
from worldsmith.models.parameter_names import native_name
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FILES = ("*.safetensors", "*.json")
OURS = (
    "expected a run folder, a checkpoints/iter_… folder or its model folder, or an output folder of `worldsmith "
    "convert` or `worldsmith export`"
)


def open_weights(
    path: str | Path, *, field: str = LOAD_PATH, family: str = "", world: World | None = None
) -> WeightSource:
    """Opens weights in any supported format, in a local folder or on the Hugging Face Hub. Reads no tensor.

    Files with checksums are verified completely, once per process.

    Args:
        path: Path, Hub name or short name of a released model.
        field: Config field or option that contains the path, for messages.
        family: Model family that is tried first, because several may be able to read the folder; "": no preference.
        world: Ranks that call this function together and divide the verification; None: this process only.

    Raises:
        FileNotFoundError: If the path contains no weights.
        UserError: If a file is damaged or the format is not supported.
    """
    world = world or World()
    if in_store(str(path)):
        path = fetched(world.broadcast(pinned(str(path))), field=field)
    root = local_folder(full_name(str(path)), file_patterns=FILES, field=field)
    foreign = find_source(root)
    if root.is_file() and foreign is None:
        raise UserError(f"{field} {path} is a file; {OURS}, or {describe_readable()}")
    require_same_kind(root, world, field=field)
    if foreign is not None:
        if root.is_dir():
            require_intact(root, world)
        return foreign()
    model_folder = find_model_folder(root, world)
    if model_folder is not None:
        return open_checkpoint(model_folder, world=world)
    if has_safetensors(root):
        require_intact(root, world)
        return open_safetensors(root, family)
    raise FileNotFoundError(f"{field} {path}: no checkpoint in this folder; {OURS}, or {describe_readable()}")


def require_weights(path: str, *, field: str, family: str = "") -> None:
    """Checks that a path contains weights in a supported format. Reads no tensor and downloads no file.

    Args:
        path: Path, Hub name or short name of a released model.
        field: Config field or option that contains the path, for messages.
        family: Model family that is tried first; "": no preference.

    Raises:
        FileNotFoundError: If the path contains no weights.
        UserError: If the format is not supported.
    """
    local = fetch_model(path, field=field, download=False) if in_store(path) else path
    root = None if local is None else find_without_download(full_name(str(local)), file_patterns=FILES, field=field)
    if root is None:  # it exists in a store or on the Hub
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
    """Raises UserError on all ranks if they find weights of different formats in the folder `root`. Collective.

    Args:
        root: Folder of weights.
        world: Ranks to compare.
        field: Config field or option that contains the path, for messages.
    """
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
            f"{field} {root}: process 0 finds {kinds[0]} there but process {other} finds {kinds[other]}; copy the "
            "folder to all nodes"
        )


def find_model_folder(root: Path, world: World) -> Path | None:
    """Finds the DCP folder with the weights in a checkpoint, a base checkpoint or a run (its newest intact checkpoint).

    Collective: the ranks divide the verification of checksums. Damaged checkpoints of a run are skipped with a warning;
    other damage raises UserError.

    Args:
        root: Folder of the checkpoint or run, or the DCP folder itself.
        world: Ranks that call this function together.

    Returns:
        The DCP folder; None if `root` contains no DCP folder.
    """
    model = own_model_folder(root)
    if model is not None:
        if model.name == "model":  # otherwise files next to it are unrelated
            require_intact(model.parent, world, only=WEIGHTS)
        return model
    for checkpoints in (root, root / "checkpoints"):
        latest = find_latest(checkpoints, world, weights_only=True)
        if latest is not None:
            return latest / "model"
    return None


def own_model_folder(root: Path) -> Path | None:
    """Returns the DCP folder of a checkpoint: `root` or `root/model`; None if neither is a DCP folder.

    A folder `model` without DCP metadata is also returned if its parent has a manifest: it is a damaged DCP folder.
    """
    for model in (root, root / "model"):
        if (model / METADATA).is_file() or (model.name == "model" and model.is_dir() and has_checksums(model.parent)):
            return model
    return None


def open_checkpoint(
    model_folder: Path, tree: Mapping[str, Any] | None = None, *, base: str | None = None, world: World | None = None
) -> CheckpointWeights:
    """Opens the weights in a checkpoint of a run. Reads no tensor.

    Args:
        model_folder: Folder `model` of the checkpoint.
        tree: Config of the run as plain data; None: the one that is stored with the checkpoint.
        base: Path or Hub name of the base weights of a checkpoint with trained weights only; None: as in the config.
        world: Ranks that call this function together; None: this process only.

    Raises:
        UserError: If the checkpoint contains only trained weights and its base weights are not found.
    """
    tree = tree or run_tree(model_folder)
    if tree is None:
        about = model_folder.parent / ABOUT
        return CheckpointWeights(model_folder, read_json_object(about).get("model") if about.is_file() else None)
    below = None
    if is_partial(model_folder.parent):
        try:
            below = start_of_run(tree, base=base, world=world)
        except FileNotFoundError as error:
            raise UserError(
                f"{model_folder.parent} contains only the trained weights, and the frozen ones were not found: "
                f"{error}. For `worldsmith export`, `generate` and `evaluate`, set the folder of the frozen weights "
                "with --base DIR"
            ) from error
    return CheckpointWeights(model_folder, tree["model"], below)


def run_tree(model_folder: Path) -> dict[str, Any] | None:
    """Returns the config (plain data) of the run that wrote a checkpoint, from the checkpoint, else the run folder.

    Args:
        model_folder: Folder `model` of the checkpoint.

    Returns:
        The config; None if neither folder has a config with a model.
    """
    for file in (model_folder.parent / RUN_CONFIG, *(p / RUN_CONFIG for p in model_folder.parents[2:3])):
        if file.is_file():
            tree = read_yaml(read_config_text(file), str(file)).data
            model = tree.get("model") if isinstance(tree, dict) else None
            if isinstance(model, dict) and isinstance(model.get("config"), dict):
                return tree
    return None


class StartWeights(WeightSource):
    """Initial weights of a model: each is read from `source` if that contains it, and random otherwise.

    The random values depend only on the seed and the parameter name. LoRA adapters are not included.

    Args:
        spec: Name and config of the model.
        seed: Seed of the random values.
        source: Weights on disk; None: all weights are random.
        keys_to_skip: Substrings of the names of weights that are not read from the source.
        average_as_live: Whether the EMA weights of the source are read instead of its raw weights.
    """

    def __init__(
        self,
        spec: ModelSpec,
        seed: int,
        source: WeightSource | None = None,
        keys_to_skip: Sequence[str] = (),
        *,
        average_as_live: bool = False,
    ) -> None:
        self.family = spec.name
        self.model: Any = resolve(spec).config.build(device="meta")
        parameters = dict(self.model.network.named_parameters())
        self._places = {native_name(place): place for place in parameters if not is_adapter(native_name(place))}
        self.seed, self.source, self.average_as_live = seed, source, average_as_live
        self.shapes = {name: list(parameters[place].shape) for name, place in self._places.items()}
        self.stored = {
            name
            for name in self.shapes
            if source is not None and name in source.shapes and not any(key in f"net.{name}" for key in keys_to_skip)
        }
        self.path = source.path if source is not None else Path()
        self.describe = source.describe if source is not None else f"initial weights of seed {seed}"

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        if self.source is not None:
            stored = {name: tensor for name, tensor in tensors.items() if name in self.stored}
            self.source.read_into(stored, average=self.average_as_live, no_dist=no_dist)
        for name, tensor in tensors.items():
            if name not in self.stored:
                self._initialise(name, tensor)

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        import torch

        if self.source is None or name not in self.stored:
            return torch.float32
        return self.source.dtype(name, average=self.average_as_live)

    def _initialise(self, name: str, target: Tensor) -> None:
        """Fills `target` with the random initial value of weight `name`.

        Only the module of this weight is allocated, and only during the call.
        """
        place = self._places[name]
        owner = self.model.network.get_submodule(place.rpartition(".")[0])
        owner.to_empty(device="cpu", recurse=False)
        self.model.init_weights(self.seed, [name])
        fill(target, self.model.network.get_parameter(place).detach())
        owner.to_empty(device="meta", recurse=False)


def start_of_run(tree: Mapping[str, Any], *, base: str | None = None, world: World | None = None) -> StartWeights:
    """Opens the initial weights of a run, without its LoRA adapters. Reads no tensor.

    Args:
        tree: Config of the run as plain data.
        base: Path or Hub name to read the weights from instead of the one in the config; None: as in the config.
        world: Ranks that call this function together; None: this process only.
    """
    section = tree["checkpoint"]
    spec = weight_formats(tree["model"]["name"]).network_of_run(tree["model"])
    spec.config = spec.config.as_used()
    start = start_in(tree, spec.config)
    source = None
    if start is not None:
        field = start.field if base is None else "base"
        source = open_weights(base or start.path, field=field, family=spec.name, world=world)
    return StartWeights(
        spec,
        tree["trainer"]["seed"],
        source,
        section.get("keys_to_skip_loading") or (),
        average_as_live=section.get("load_ema_to_reg", False),
    )
