"""Finds a model on disk: a run folder, one of its checkpoints, an exported folder, or a Hub repository."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from worldsmith.checkpoint.dcp.dcp_folder import METADATA
from worldsmith.checkpoint.formats.merge_adapter import check_base, require_no_adapters
from worldsmith.checkpoint.formats.peft_adapter import BASE_WEIGHTS
from worldsmith.checkpoint.formats.stored_model import WEIGHTS_NAMES, StoredModel
from worldsmith.checkpoint.formats.weight_formats import FORMATS, full_name, weight_formats
from worldsmith.checkpoint.run.find_checkpoint import NAME, find_latest, folder_iteration
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT, RUN_CONFIG, CheckpointWeights
from worldsmith.checkpoint.sources.remote_model import fetched
from worldsmith.checkpoint.sources.stored_config import explain_config_errors
from worldsmith.checkpoint.sources.verify import WEIGHTS, require_intact
from worldsmith.config.declare.value_types import fits, wrong_type_problem
from worldsmith.config.errors import UserError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree.read_config import from_dict
from worldsmith.config.yaml.yaml_text import read_yaml
from worldsmith.distributed.world import World
from worldsmith.files.json_file import read_optional_json, section
from worldsmith.files.untrusted_folder import ADAPTER_CONFIG, base_of_adapter, is_adapter_folder
from worldsmith.models.model_files import local_folder
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

Weights = Literal["auto", "ema", "live", "untrained"]
FILES = ("*.safetensors", "*.json", "*.txt", "*.jinja", "*.model")
"""Patterns of the files of a Hub repository that a model consists of."""


def load_model(
    path: str | Path, *, weights: Weights = "auto", device: str | torch.device = "cpu", base: str | None = None
) -> Any:
    """Loads a model for inference.

    Args:
        path: Run folder, checkpoint folder, export, adapter folder, or Hub name of an export.
        weights: "ema": EMA weights; "live": raw weights; "untrained": initial weights of the run; "auto": EMA weights
            if they exist, else raw weights.
        device: Device of the weights.
        base: Path or Hub name of the base weights of adapters or of a checkpoint with trained weights only; None: as
            stated in the adapters' files or in the run's config.

    Returns:
        The model object of the family, in evaluation mode; its parameters do not require gradients.

    Raises:
        FileNotFoundError: If `path` contains no model.
        ValueError: If the model does not have the requested weights.
        UserError: If the model is damaged or does not fit its config.
    """
    return find_model(path, weights=weights, base=base).load(device)


def find_model(path: str | Path, *, weights: Weights = "auto", base: str | None = None) -> StoredModel:
    """Finds a model and reads its config, but not its weights. The checksums of a run's checkpoint are verified.

    Args:
        path: A run folder (its newest intact checkpoint is used), one of its checkpoints/iter_… folders, an export
            (pipeline or native), the Hub name of an export, or a PEFT folder of LoRA adapters (the result is then their
            base model with the adapters).
        weights: "ema": EMA weights; "live": raw weights; "untrained": initial weights of the run; "auto": EMA weights
            if they exist, else raw weights.
        base: Path or Hub name of the base weights of adapters or of a checkpoint with trained weights only; None: as
            stated in the adapters' files or in the run's config.

    Raises:
        FileNotFoundError: If `path` contains no model.
        ValueError: If the model does not have the requested weights.
        ConfigError: If its config cannot be read.
        UserError: If the model is damaged, or `base` is given for a model that contains all its weights.
    """
    model, checkpoint = identify(path, base)
    is_given = base is not None
    if model.adapter is not None:
        base = None  # `model` is the base model already
        if weights == "auto" and model.tree is not None:
            weights = read_optional_json(model.adapter / ABOUT).get(BASE_WEIGHTS, "live")
    choose = choose_export_weights if model.tree is None else choose_run_weights
    model = choose(replace(model, base=base), checkpoint, weights)
    if model.adapter is not None:
        require_no_adapters(model, model.adapter)
        check_base(model, model.adapter, is_given=is_given)
    return model


def find_family(path: str | Path, *, base: str | None = None) -> str:
    """Returns the name of the model family of the model at `path`; reads only its config.

    Args:
        path: Run folder, checkpoint folder, export, adapter folder, or Hub name of an export.
        base: Path or Hub name of the base model of adapters; None: as stated in the adapters' files.

    Raises:
        FileNotFoundError: If `path` contains no model.
        UserError: If the config cannot be read; ValueError if it lacks a required section.
    """
    return identify(path, base)[0].spec.name


def identify(path: str | Path, base: str | None = None) -> tuple[StoredModel, Path | None]:
    """Finds the model at `path` without choosing between its EMA, raw and initial weights. No checksum is verified.

    Args:
        path: Run folder, checkpoint folder, export, adapter folder, or Hub name of an export.
        base: Path or Hub name of the base model of adapters; None: as stated in the adapters' files.

    Returns:
        (model, checkpoint folder). The checkpoint folder is `path` if that is one, else None. If `path` contains
        adapters, the pair is that of their base model, and the model's field `adapter` is the adapter folder.

    Raises:
        FileNotFoundError: If `path` contains no model.
        UserError: If the config cannot be read; ValueError if it lacks a required section.
    """
    path = local_folder(full_name(fetched(str(path), field="model")), file_patterns=FILES, field="model")
    about = read_optional_json(path / ABOUT)
    if "converted_from" in about:
        raise FileNotFoundError(
            f"{path} is a base checkpoint of `worldsmith convert`: it has no tokenizer and no VAE for generating "
            "videos; use it as checkpoint.load_path of a run"
        )
    if about and about.get("format") != "adapter":
        if "model" not in about:
            raise UserError(f"{path / ABOUT} has no section 'model', which describes the network")
        with explain_config_errors(path / ABOUT):
            return read_export(path, from_dict(about["model"], ModelSpec), about), None
    if (path / "model").is_dir() and (NAME.fullmatch(path.resolve().name) or (path / "model" / METADATA).is_file()):
        run_folder = path.resolve().parent.parent
        return read_run(path / RUN_CONFIG if (path / RUN_CONFIG).is_file() else run_folder / RUN_CONFIG, path), path
    if (path / RUN_CONFIG).is_file():
        return read_run(path / RUN_CONFIG, path), None
    for formats in FORMATS.all():
        spec = formats.read_pipeline(path)
        if spec is not None:
            return read_export(path, spec, {}), None
    if is_adapter_folder(path):
        named = base or about.get("base_model") or base_of_adapter(path)
        if not named:
            raise FileNotFoundError(
                f"{path} contains adapters, but {ADAPTER_CONFIG} does not name their base model; set it with --base"
            )
        model, checkpoint = identify(named)
        if model.adapter is not None:
            raise UserError(
                f"{path} contains adapters for {named}, which also contains adapters; set their base model with --base"
            )
        return replace(model, adapter=path), checkpoint
    raise FileNotFoundError(
        f"{path}: no model in this folder; expected a run folder (with {RUN_CONFIG}), one of its checkpoints/iter_… "
        "folders, or an export of `worldsmith export`: a pipeline (with model_index.json), a transformers folder, "
        "or a native export"
    )


def read_run(config_file: Path, path: Path) -> StoredModel:
    """Returns the model of a run with its initial weights (`weights="untrained"`).

    Args:
        config_file: The config.yaml of the run.
        path: Path that the user gave, for messages.
    """
    if not config_file.is_file():
        raise FileNotFoundError(f"{path}: {config_file} is missing, so the model is unknown")
    tree = read_yaml(read_config_text(config_file), str(config_file)).data
    for part in ("job", "model", "objective", "trainer", "checkpoint", "dataloader_train"):
        if not isinstance(tree, dict) or not isinstance(tree.get(part), dict):
            raise ValueError(f"{config_file} has no section '{part}'; expected the config.yaml of a training run")
    with explain_config_errors(config_file):
        spec = from_dict(tree["model"], ModelSpec)
    spec.config = spec.config.as_used()
    return StoredModel(
        folder=config_file.parent,
        spec=spec,
        defaults=weight_formats(spec.name).defaults_of_run(tree),
        run="/".join(tree["job"][key] for key in ("project", "group", "name") if tree["job"].get(key)),
        iteration=0,
        weights="untrained",
        tree=tree,
    )


def choose_run_weights(model: StoredModel, checkpoint: Path | None, weights: Weights) -> StoredModel:
    """Returns the model of a run with the requested weights of a checkpoint.

    Args:
        model: The model with its initial weights.
        checkpoint: Checkpoint folder; None: the newest intact checkpoint of the run.
        weights: "ema", "live" (raw), "untrained" (initial) or "auto" (EMA weights if they exist, else raw weights).

    Raises:
        FileNotFoundError: If the run has no checkpoint.
        ValueError: If `weights` is "ema" and the checkpoint has no EMA weights.
        UserError: If the checkpoint is damaged, or `model.base` is set although the requested weights need no base
            weights.
    """
    if weights == "untrained":
        if model.base is not None and model.start is None:
            raise needs_no_base(model.folder, "it started from random weights")
        return model
    if checkpoint is None:
        checkpoint = find_latest(model.folder / "checkpoints", World(), weights_only=True)
        if checkpoint is None:
            raise FileNotFoundError(f"no checkpoint in {model.folder / 'checkpoints'}")
    else:
        require_intact(checkpoint, World(), only=WEIGHTS)
    if model.base is not None and not is_partial(checkpoint):
        raise needs_no_base(checkpoint, "it contains all its weights")
    has_ema = bool(CheckpointWeights(checkpoint / "model").average_shapes)
    if weights == "ema" and not has_ema:
        raise ValueError(f"{checkpoint} has no EMA weights (model.config.ema was off): use the raw weights (live)")
    chosen: Literal["ema", "live"] = "live" if weights == "live" or not has_ema else "ema"
    return replace(model, folder=checkpoint, iteration=folder_iteration(checkpoint.resolve()), weights=chosen)


def read_export(folder: Path, spec: ModelSpec, about: Mapping[str, Any]) -> StoredModel:
    """Returns the model in a folder that contains all its weights: an export, or a folder of another library.

    Args:
        folder: The folder.
        spec: Name and config of the model; paths in the config are changed, in place, to the components in the folder.
        about: Content of the folder's `worldsmith.json`; empty for a folder of another library.
    """
    formats = weight_formats(spec.name)
    formats.set_component_folder(spec.config, folder)
    source = section(about, "source")
    if about:
        defaults = read_generation(formats, about, folder)
    else:
        defaults = formats.published_defaults(spec.config, folder)
    return StoredModel(
        folder=folder,
        spec=spec,
        defaults=defaults,
        run=source.get("run", ""),
        iteration=source.get("iteration", 0),
        weights=source.get("weights", "live"),
        tree=None,
    )


def read_generation(formats: Any, about: Mapping[str, Any], folder: Path) -> Any:
    """Returns the default generation settings of an export; raises UserError for unknown or invalid settings.

    Args:
        formats: `WeightFormats` of the model's family.
        about: Content of the export's `worldsmith.json`.
        folder: Folder of the export, for messages.

    Returns:
        A dataclass of the model family; None if the family has no such settings.
    """
    generation = section(about, "generation")
    defaults = formats.read_defaults({})
    hints = {} if defaults is None else get_type_hints(type(defaults))
    for name, value in generation.items() if defaults is not None else ():
        if name not in {known.name for known in fields(defaults)}:
            raise UserError(f"{folder / ABOUT}: unknown key '{name}' in generation. Export the model again")
        if not fits(value, hints[name]) or (isinstance(value, float) and not math.isfinite(value)):
            problem = wrong_type_problem(("generation", name), hints[name], value)
            raise UserError(f"{folder / ABOUT}: {replace(problem, hint=None).render()}. Export the model again")
    return formats.read_defaults(generation)


def choose_export_weights(model: StoredModel, _: Path | None, weights: Weights) -> StoredModel:
    """Returns `model`, an export, if it has the requested weights; else raises ValueError.

    Raises UserError if `model.base` is set, because an export needs no base weights. The second argument is ignored; it
    gives this function the signature of `choose_run_weights`.
    """
    if model.base is not None:
        raise needs_no_base(model.folder, "an exported folder contains all weights")
    if weights not in ("auto", model.weights):
        raise ValueError(
            f"{model.folder} contains only the {WEIGHTS_NAMES[model.weights]}; for the {WEIGHTS_NAMES[weights]}, use "
            "the run folder"
        )
    return model


def needs_no_base(folder: Path, reason: str) -> UserError:
    return UserError(f"{folder} needs no base weights: {reason}; omit --base")
