"""A generator from disk: from a run folder, one of its checkpoints, an exported folder, or a hub repository of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.checkpoint.dcp.parts import METADATA
from worldsmith.checkpoint.formats.cosmos3.diffusers_keys import network_config_from_diffusers
from worldsmith.checkpoint.formats.cosmos3.merged_weights import MergedWeights
from worldsmith.checkpoint.formats.cosmos3.tensor_names import NATIVE_TYPE
from worldsmith.checkpoint.run.folders import NAME, find_latest, folder_iteration
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.checkpoint_weights import (
    LIVE,
    MANIFEST,
    RUN_CONFIG,
    CheckpointWeights,
    open_checkpoint,
)
from worldsmith.checkpoint.sources.start_weights import start_of_run
from worldsmith.checkpoint.sources.verify import WEIGHTS, require_whole
from worldsmith.checkpoint.sources.warm_start import compare
from worldsmith.checkpoint.sources.weight_source import WeightSource, open_weights
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import from_dict
from worldsmith.config.yaml.text import read_yaml
from worldsmith.distributed.world import World
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.cosmos3.generator import Cosmos3Generator, GenerationDefaults
from worldsmith.models.lora import is_adapter
from worldsmith.models.model_files import local_folder
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

Weights = Literal["auto", "ema", "live", "untrained"]
PIPELINE_INDEX = "model_index.json"
FILES = ("*.safetensors", "*.json", "*.txt", "*.jinja")
"""What a hub repository's model consists of."""


@dataclass(frozen=True)
class StoredModel:
    """A model on disk whose config has been read and whose weights have been chosen, but not read yet."""

    folder: Path
    """The checkpoint's iter folder, the exported folder, or (untrained) the run folder."""
    config: Cosmos3Generator.Config
    defaults: GenerationDefaults
    run: str
    """The run's project/group/name."""
    iteration: int
    """Optimizer steps behind the weights; 0 for untrained ones."""
    weights: Literal["ema", "live", "untrained"]
    tree: Mapping[str, Any] | None
    """The run's whole config as plain data; None for an exported folder."""
    base: str | None = None
    """Where the weights that the run started from are now; None: where its config says."""

    @property
    def average(self) -> bool:
        """Whether the averaged weights are meant."""
        return self.weights == "ema"

    def open(self, *, merge: bool = True) -> WeightSource:
        """The weights, to be read one by one; those of a LoRA run with their adapters merged, if `merge`.

        Raises FileNotFoundError or UserError when they, or what they build on, cannot be read.
        """
        source = self._source
        if not merge or not any(is_adapter(name) for name in source.shapes):
            return source
        return MergedWeights(source, self.config.lora_alpha / self.config.lora_rank)

    def open_adapters(self) -> WeightSource:
        """What the checkpoint of a LoRA run holds itself; the weights that it was trained on need not be there."""
        return CheckpointWeights(self.folder / "model", {})

    @cached_property
    def _source(self) -> WeightSource:
        """The weights, verified: that is done once, however often they are opened."""
        if self.tree is None:
            return open_weights(self.folder, field="model")
        if self.weights == "untrained":
            return start_of_run(self.tree, base=self.base)
        checkpoint = open_checkpoint(self.folder / "model", self.tree, base=self.base)
        checkpoint.check_frozen()
        return checkpoint

    def require_effect(self) -> None:
        """Raises ValueError when the adapters of a LoRA run would change nothing in what is exported."""
        source = self.open()
        if isinstance(source, MergedWeights) and not source.changes_something(average=self.average):
            raise ValueError(
                f"the adapters in {self.folder} are all zero, as before training: merging them would change nothing"
            )

    def load(
        self, device: str | torch.device = "cpu", *, full_precision: bool = False, keep_adapters: bool = False
    ) -> Cosmos3Generator:
        """Reads the weights in the model's precision, or float32 with `full_precision`; more memory is never taken.

        A LoRA run's adapters are merged into the weights unless `keep_adapters`. Raises UserError when the weights do
        not fit the config.
        """
        import torch

        keep = keep_adapters and self.config.lora_enabled
        config = self.config if keep else self.config.without_adapters()
        generator: Cosmos3Generator = config.build(device="meta", defaults=self.defaults)
        if not full_precision:
            generator.network.cast(getattr(torch, config.precision))
        generator.materialize(device)
        parameters = {name: p.detach() for name, p in native_parameters(generator.network).items()}
        source = self.open(merge=not keep)
        shapes = {LIVE + name: list(parameter.shape) for name, parameter in parameters.items()}
        report = compare(source, shapes, network=config.network)
        if report.initialised:
            raise UserError(
                f"{source.describe} is not a whole generator: it lacks {len(report.initialised)} of "
                f"{len(shapes)} tensors, such as {report.initialised[0]}; it can be trained from, with it as "
                "checkpoint.load_path"
            )
        source.read_into(parameters, average=self.average)
        generator.network.eval().requires_grad_(False)
        return generator


def load_generator(
    path: str | Path, *, weights: Weights = "auto", device: str | torch.device = "cpu", base: str | None = None
) -> Cosmos3Generator:
    """The generator that is stored at `path`, ready for sampling; see `find_model`."""
    return find_model(path, weights=weights, base=base).load(device)


def find_model(path: str | Path, *, weights: Weights = "auto", base: str | None = None) -> StoredModel:
    """Finds a model without reading its weights.

    Args:
        path: a run folder (its newest complete checkpoint is taken), an iter folder, an exported pipeline or native
            export, or the hub name of one of the last two.
        weights: "ema" the averaged weights, "live" the trained ones, "untrained" those that the run started from,
            "auto" averaged if there are any, else live.
        base: where the weights are now on which a checkpoint of trained weights only was trained (what
            `open_weights` takes); None: at the load_path in the run's config.

    A checkpoint is verified. Raises FileNotFoundError when `path` holds no model, ValueError when it does not have the
    weights asked for, ConfigError when its config cannot be read, UserError when it is damaged or needs no base.
    """
    path = local_folder(str(path), file_patterns=FILES, field="model")
    if (path / PIPELINE_INDEX).is_file():
        return find_export(path, weights, base)
    if (path / MANIFEST).is_file() and "converted_from" in read_json_object(path / MANIFEST):
        raise FileNotFoundError(
            f"{path} is a base checkpoint that `worldsmith convert` made: it has no tokenizer and no VAE to make "
            "videos with; give it to a run as checkpoint.load_path"
        )
    if (path / "model").is_dir() and (NAME.fullmatch(path.resolve().name) or (path / "model" / METADATA).is_file()):
        run_folder = path.resolve().parent.parent
        config_file = path / RUN_CONFIG if (path / RUN_CONFIG).is_file() else run_folder / RUN_CONFIG
        return find_checkpoint(config_file, path, weights, base)
    if (path / RUN_CONFIG).is_file():
        return find_checkpoint(path / RUN_CONFIG, None, weights, base)
    if (path / MANIFEST).is_file() and is_native_export(path):
        return find_export(path, weights, base)
    raise FileNotFoundError(
        f"{path}: no model in this folder; expected a run folder (with {RUN_CONFIG}), one of its checkpoints/iter_… "
        f"folders, or what `worldsmith export` wrote: a pipeline (with {PIPELINE_INDEX}) or a native export"
    )


def is_native_export(folder: Path) -> bool:
    """Whether the folder's config.json is that of our native export."""
    file = folder / "config.json"
    return file.is_file() and read_json_object(file).get("model_type") == NATIVE_TYPE


def find_checkpoint(config_file: Path, checkpoint: Path | None, weights: Weights, base: str | None) -> StoredModel:
    """A model of a run; `checkpoint` None means its newest complete one."""
    if not config_file.is_file():
        raise FileNotFoundError(f"{checkpoint}: {config_file} is missing, which says what model this is")
    tree = read_yaml(config_file.read_text(encoding="utf-8"), str(config_file)).data
    for part in ("job", "model", "objective", "trainer", "checkpoint", "dataloader_train"):
        if part not in tree:
            raise ValueError(f"{config_file} has no section '{part}'; expected the config.yaml of a training run")
    spec = from_dict(tree["model"], ModelSpec)
    stored = StoredModel(
        folder=config_file.parent,
        config=spec.config,
        defaults=defaults_of_run(tree),
        run="/".join(tree["job"][key] for key in ("project", "group", "name") if tree["job"].get(key)),
        iteration=0,
        weights="untrained",
        tree=tree,
        base=base,
    )
    if weights == "untrained":
        if base is not None and not tree["checkpoint"].get("load_path"):
            raise needs_no_base(config_file.parent, "it began with random weights")
        return stored
    if checkpoint is None:
        checkpoint = find_latest(config_file.parent / "checkpoints", World(), weights_only=True)
        if checkpoint is None:
            raise FileNotFoundError(f"no checkpoint in {config_file.parent / 'checkpoints'}")
    else:
        require_whole(checkpoint, World(), only=WEIGHTS)
    if base is not None and not is_partial(checkpoint):
        raise needs_no_base(checkpoint, "it holds all its weights")
    averaged = bool(CheckpointWeights(checkpoint / "model", {}).average_shapes)
    if weights == "ema" and not averaged:
        raise ValueError(f"{checkpoint} has no averaged weights (model.config.ema was off); ask for the live ones")
    kind: Literal["ema", "live"] = "live" if weights == "live" or not averaged else "ema"
    return replace(stored, folder=checkpoint, iteration=folder_iteration(checkpoint.resolve()), weights=kind)


def needs_no_base(folder: Path, reason: str) -> UserError:
    return UserError(f"{folder} needs no base: {reason}; leave the base out")


def find_export(folder: Path, weights: Weights, base: str | None) -> StoredModel:
    """A model in one of our exports, or in a diffusers pipeline folder of somebody else."""
    if base is not None:
        raise needs_no_base(folder, "an exported folder holds all weights")
    manifest: dict[str, Any] = {}
    if (folder / MANIFEST).is_file():
        manifest = read_json_object(folder / MANIFEST)
        if "model" not in manifest:
            raise UserError(f"{folder / MANIFEST} has no section 'model', which says what network this is")
        config = from_dict(manifest["model"], ModelSpec).config
    else:
        transformer = read_json_object(folder / "transformer" / "config.json")
        config = Cosmos3Generator.Config(network=network_config_from_diffusers(transformer))
    # A pipeline holds all its components; a native export has its tokenizer and names the VAE.
    if (folder / PIPELINE_INDEX).is_file():
        config.tokenizer.vae_path = str(folder / "vae")
    config.text_tokenizer.path = str(folder / "text_tokenizer")
    source = section(manifest, "source")
    kind = source.get("weights", "live")
    if weights not in ("auto", kind):
        raise ValueError(f"{folder} holds the {kind} weights only; for the {weights} ones give the run folder")
    return StoredModel(
        folder=folder,
        config=config,
        defaults=GenerationDefaults(**section(manifest, "generation")),
        run=source.get("run", ""),
        iteration=source.get("iteration", 0),
        weights=kind,
        tree=None,
    )


def defaults_of_run(tree: Mapping[str, Any]) -> GenerationDefaults:
    """What a run's config says about its videos; sizes that only its data know stay None."""
    loader = tree["dataloader_train"]
    dataset = loader["dataset"]
    shift = tree["objective"]["shift"]
    if isinstance(shift, dict):  # a table without the tier makes the shift depend on each clip's size
        shift = shift.get(dataset["resolution"])
    return GenerationDefaults(
        num_frames=dataset["num_video_frames"] if dataset["num_video_frames"] > 0 else None,
        fps=dataset["conditioning_fps"] if dataset["conditioning_fps"] > 0 else None,
        shift=None if shift is None else float(shift),
        append_duration_fps=dataset["append_duration_fps_timestamps"],
        append_resolution=dataset["append_resolution_info"],
        caption_suffix=dataset["caption_suffix"],
        unconditional_keeps_metadata=dataset["cfg_dropout_keep_metadata"],
        max_caption_tokens=loader["max_caption_tokens"],
    )
