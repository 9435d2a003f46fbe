"""A generator from disk: from a run folder, one of its checkpoints, an exported folder, or a hub repository of one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.checkpoint.checkpoint_weights import LIVE, MANIFEST, RUN_CONFIG, open_checkpoint
from worldsmith.checkpoint.diffusers_keys import network_config_from_diffusers
from worldsmith.checkpoint.folders import POINTER, folder_iteration
from worldsmith.checkpoint.manifest import find_damage
from worldsmith.checkpoint.merged_weights import MergedWeights
from worldsmith.checkpoint.start_weights import start_of_run
from worldsmith.checkpoint.tensor_names import NATIVE_TYPE
from worldsmith.checkpoint.warm_start import compare
from worldsmith.checkpoint.weight_source import WeightSource, open_weights
from worldsmith.config.errors import UserError
from worldsmith.config.tree import from_dict
from worldsmith.config.yaml_text import read_yaml
from worldsmith.models.cosmos3.generator import Cosmos3Generator, GenerationDefaults
from worldsmith.models.lora import is_adapter
from worldsmith.models.model_files import local_folder
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

Weights = Literal["auto", "ema", "live", "untrained"]
PIPELINE_INDEX = "model_index.json"
FILES = ("*.safetensors", "*.json", "*.txt", "*.jinja")
"""What a hub repository's model consists of."""


@dataclass(frozen=True, slots=True)
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

    @property
    def average(self) -> bool:
        """Whether the averaged weights are meant."""
        return self.weights == "ema"

    def open(self, *, merge: bool = True) -> WeightSource:
        """The weights, to be read one by one; those of a LoRA run with their adapters merged, if `merge`.

        Raises FileNotFoundError or UserError when they, or what they build on, cannot be read.
        """
        source: WeightSource
        if self.tree is None:
            source = open_weights(self.folder, field="model")
        elif self.weights == "untrained":
            source = start_of_run(self.tree)
        else:
            source = checkpoint = open_checkpoint(self.folder / "model", self.tree)
            checkpoint.check_frozen()
        if not merge or not any(is_adapter(name) for name in source.shapes):
            return source
        return MergedWeights(source, self.config.lora_alpha / self.config.lora_rank)

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
        """Reads the weights, and casts them to the model's precision unless `full_precision` keeps them float32.

        A LoRA run's adapters are merged into the weights unless `keep_adapters`. Raises UserError when the weights do
        not fit the config.
        """
        import torch

        keep = keep_adapters and self.config.lora_enabled
        config = replace(self.config, lora_enabled=keep)
        generator: Cosmos3Generator = config.build(device=device, defaults=self.defaults)
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
        if not full_precision:
            generator.network.cast(getattr(torch, config.precision))
        return generator


def load_generator(
    path: str | Path, *, weights: Weights = "auto", device: str | torch.device = "cpu"
) -> Cosmos3Generator:
    """The generator that is stored at `path`, ready for sampling; see `find_model`."""
    return find_model(path, weights=weights).load(device)


def find_model(path: str | Path, *, weights: Weights = "auto") -> StoredModel:
    """Finds a model without reading its weights.

    Args:
        path: a run folder (its newest complete checkpoint is taken), an iter folder, an exported pipeline or native
            export, or the hub name of one of the last two.
        weights: "ema" the averaged weights, "live" the trained ones, "untrained" those that the run started from,
            "auto" averaged if there are any, else live.

    Raises FileNotFoundError when `path` holds no model, ValueError when it does not have the weights asked for,
    ConfigError when its config cannot be read.
    """
    path = local_folder(str(path), file_patterns=FILES, field="model")
    if (path / PIPELINE_INDEX).is_file():
        return find_export(path, weights)
    if (path / MANIFEST).is_file() and "converted_from" in (path / MANIFEST).read_text(encoding="utf-8"):
        raise FileNotFoundError(
            f"{path} is a base checkpoint that `worldsmith convert` made: it has no tokenizer and no VAE to make "
            "videos with; give it to a run as checkpoint.load_path"
        )
    if (path / "model" / ".metadata").is_file():
        run_folder = path.resolve().parent.parent
        config_file = path / RUN_CONFIG if (path / RUN_CONFIG).is_file() else run_folder / RUN_CONFIG
        return find_checkpoint(config_file, path, weights)
    if (path / RUN_CONFIG).is_file():
        return find_checkpoint(path / RUN_CONFIG, None, weights)
    if (path / MANIFEST).is_file() and is_native_export(path):
        return find_export(path, weights)
    raise FileNotFoundError(
        f"{path}: no model in this folder; expected a run folder (with {RUN_CONFIG}), one of its checkpoints/iter_… "
        f"folders, or what `worldsmith export` wrote: a pipeline (with {PIPELINE_INDEX}) or a native export"
    )


def is_native_export(folder: Path) -> bool:
    """Whether the folder's config.json is that of our native export."""
    file = folder / "config.json"
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")).get("model_type") == NATIVE_TYPE


def find_checkpoint(config_file: Path, checkpoint: Path | None, weights: Weights) -> StoredModel:
    """A model of a run; `checkpoint` None means its newest complete one."""
    if not config_file.is_file():
        raise FileNotFoundError(f"{checkpoint}: {config_file} is missing, which says what model this is")
    tree = read_yaml(config_file.read_text(encoding="utf-8"), str(config_file)).data
    for section in ("job", "model", "objective", "trainer", "checkpoint", "dataloader_train"):
        if section not in tree:
            raise ValueError(f"{config_file} has no section '{section}'; expected the config.yaml of a training run")
    spec = from_dict(tree["model"], ModelSpec)
    stored = StoredModel(
        folder=config_file.parent,
        config=spec.config,
        defaults=defaults_of_run(tree),
        run="/".join(tree["job"][key] for key in ("project", "group", "name") if tree["job"].get(key)),
        iteration=0,
        weights="untrained",
        tree=tree,
    )
    if weights == "untrained":
        return stored
    if checkpoint is None:
        checkpoint, problems = latest_checkpoint(config_file.parent / "checkpoints")
        for problem in problems:
            logger.warning("damaged checkpoint passed over: %s", problem)
    averaged = bool(open_checkpoint(checkpoint / "model", tree).average_shapes)
    if weights == "ema" and not averaged:
        raise ValueError(f"{checkpoint} has no averaged weights (model.config.ema was off); ask for the live ones")
    kind: Literal["ema", "live"] = "live" if weights == "live" or not averaged else "ema"
    return replace(stored, folder=checkpoint, iteration=folder_iteration(checkpoint.resolve()), weights=kind)


def latest_checkpoint(checkpoints: Path) -> tuple[Path, list[str]]:
    """The newest complete checkpoint of a run's `checkpoints` folder, and why newer ones were passed over.

    Only reads, so that it may look at a run that is still training. Raises FileNotFoundError when none is complete.
    """
    found = sorted((path for path in checkpoints.glob("iter_*") if path.is_dir()), key=folder_iteration, reverse=True)
    pointer = checkpoints / POINTER
    if pointer.exists():
        named = checkpoints / pointer.read_text(encoding="utf-8").strip()
        found.sort(key=lambda path: path != named)
    problems: list[str] = []
    for candidate in found:
        problem = find_damage(candidate)
        if problem is None:
            return candidate, problems
        problems.append(f"{candidate.name}: {problem}")
    detail = f"; none of these is complete: {'; '.join(problems)}" if problems else ""
    raise FileNotFoundError(f"no checkpoint in {checkpoints}{detail}")


def find_export(folder: Path, weights: Weights) -> StoredModel:
    """A model in one of our exports, or in a diffusers pipeline folder of somebody else."""
    manifest: dict[str, Any] = {}
    if (folder / MANIFEST).is_file():
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        config = from_dict(manifest["model"], ModelSpec).config
    else:
        transformer = json.loads((folder / "transformer" / "config.json").read_text(encoding="utf-8"))
        config = Cosmos3Generator.Config(network=network_config_from_diffusers(transformer))
    # A pipeline holds all its components; a native export has its tokenizer and names the VAE.
    if (folder / PIPELINE_INDEX).is_file():
        config.tokenizer.vae_path = str(folder / "vae")
    config.text_tokenizer.path = str(folder / "text_tokenizer")
    source = manifest.get("source", {})
    kind = source.get("weights", "live")
    if weights not in ("auto", kind):
        raise ValueError(f"{folder} holds the {kind} weights only; for the {weights} ones give the run folder")
    return StoredModel(
        folder=folder,
        config=config,
        defaults=GenerationDefaults(**manifest.get("generation", {})),
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
