"""A generator from disk: from a run folder, from one of its checkpoints, or from an exported pipeline folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.checkpoint.checkpointer import folder_iteration
from worldsmith.checkpoint.diffusers_keys import network_config_from_diffusers
from worldsmith.checkpoint.model_weights import (
    has_average,
    latest_checkpoint,
    read_checkpoint_weights,
    read_diffusers_weights,
    read_initial_weights,
)
from worldsmith.config.tree import from_dict
from worldsmith.config.yaml_text import read_yaml
from worldsmith.models.cosmos3.generator import Cosmos3Generator, GenerationDefaults
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

Weights = Literal["auto", "ema", "live", "untrained"]
RUN_CONFIG = "config.yaml"
PIPELINE_INDEX = "model_index.json"
MANIFEST = "worldsmith.json"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on disk whose config has been read and whose weights have been chosen, but not read yet."""

    folder: Path
    """The checkpoint's iter folder, the exported pipeline, or (untrained) the run folder."""
    config: Cosmos3Generator.Config
    defaults: GenerationDefaults
    run: str
    """The run's project/group/name."""
    iteration: int
    """Optimizer steps behind the weights; 0 for untrained ones."""
    weights: Literal["ema", "live", "untrained"]
    tree: Mapping[str, Any] | None
    """The run's whole config as plain data; None for an exported pipeline."""

    def load(self, device: str | torch.device = "cpu", *, full_precision: bool = False) -> Cosmos3Generator:
        """Reads the weights, and casts them to the model's precision unless `full_precision` keeps them float32.

        Raises ValueError or UserError when they do not fit the config.
        """
        import torch

        seed = self.tree["trainer"]["seed"] if self.weights == "untrained" and self.tree else None
        generator: Cosmos3Generator = self.config.build(device=device, seed=seed, defaults=self.defaults)
        if self.tree is None:
            read_diffusers_weights(self.folder / "transformer", generator.network)
        elif self.weights != "untrained":
            read_checkpoint_weights(self.folder, generator.network, average=self.weights == "ema")
        elif self.tree["checkpoint"]["load_path"]:
            source = self.tree["checkpoint"]
            read_initial_weights(source["load_path"], generator.network, source["keys_to_skip_loading"])
        generator.network.eval().requires_grad_(False)
        if not full_precision:
            generator.network.cast(getattr(torch, self.config.precision))
        return generator


def load_generator(
    path: str | Path, *, weights: Weights = "auto", device: str | torch.device = "cpu"
) -> Cosmos3Generator:
    """The generator that is stored at `path`, ready for sampling; see `find_model`."""
    return find_model(path, weights=weights).load(device)


def find_model(path: str | Path, *, weights: Weights = "auto") -> StoredModel:
    """Finds a model without reading its weights.

    Args:
        path: a run folder (its newest complete checkpoint is taken), an iter folder, or an exported pipeline.
        weights: "ema" the averaged weights, "live" the trained ones, "untrained" those that the run started from,
            "auto" averaged if there are any, else live.

    Raises FileNotFoundError when `path` holds no model, ValueError when it does not have the weights asked for,
    ConfigError when its config cannot be read.
    """
    path = Path(path)
    if (path / PIPELINE_INDEX).is_file():
        return find_pipeline(path, weights)
    if (path / "model" / ".metadata").is_file():
        run_folder = path.resolve().parent.parent
        config_file = path / RUN_CONFIG if (path / RUN_CONFIG).is_file() else run_folder / RUN_CONFIG
        return find_checkpoint(config_file, path, weights)
    if (path / RUN_CONFIG).is_file():
        return find_checkpoint(path / RUN_CONFIG, None, weights)
    raise FileNotFoundError(
        f"{path}: {'no model in this folder' if path.exists() else 'no such folder'}; expected a run folder (with "
        f"{RUN_CONFIG}), one of its checkpoints/iter_… folders, or an exported pipeline (with {PIPELINE_INDEX})"
    )


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
    averaged = has_average(checkpoint)
    if weights == "ema" and not averaged:
        raise ValueError(f"{checkpoint} has no averaged weights (model.config.ema was off); ask for the live ones")
    kind: Literal["ema", "live"] = "live" if weights == "live" or not averaged else "ema"
    return replace(stored, folder=checkpoint, iteration=folder_iteration(checkpoint.resolve()), weights=kind)


def find_pipeline(folder: Path, weights: Weights) -> StoredModel:
    """A model in a diffusers pipeline folder: one of our exports, or another one with the same components."""
    manifest: dict[str, Any] = {}
    if (folder / MANIFEST).is_file():
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        config = from_dict(manifest["model"], ModelSpec).config
    else:
        transformer = json.loads((folder / "transformer" / "config.json").read_text(encoding="utf-8"))
        config = Cosmos3Generator.Config(network=network_config_from_diffusers(transformer))
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
