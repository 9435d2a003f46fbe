"""The functions of the public Python API: they run the commands of the command line with the same components.

A command is a component whose fields are its flags. These functions fill in the fields, check them as the command line
does, and return the component's result. Import them from `worldsmith`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.actions.action import Action, Result, user_errors
from worldsmith.actions.registry import command_class_for_model, command_classes
from worldsmith.config.declare.configurable import Configurable
from worldsmith.config.errors import ConfigError
from worldsmith.config.load import load
from worldsmith.config.tree.config_draft import Draft, Loaded, finish
from worldsmith.config.tree.plain import to_plain
from worldsmith.config.tree.read_config import read_tree
from worldsmith.config.tree.references import resolve

if TYPE_CHECKING:
    from worldsmith.planning.plan import Plan
    from worldsmith.training.trainer import Trainer

logger = logging.getLogger("worldsmith")

PathText = str | PathLike[str]


def load_config(
    source: PathText | Sequence[PathText], overrides: Sequence[str] = (), *, keep_unset: bool = False
) -> Trainer.Config:
    """Loads the config of a run, to be changed and passed to `Trainer` or `plan`.

    References such as ``${trainer.max_iter}`` stay in the config and are resolved by `Trainer` and `plan`: a value that
    refers to another one follows its changes. Warnings are logged.

    Args:
        source: The name of a recipe; a recipe TOML, a YAML or JSON file, or a Cosmos-RL or TAO spec; a run folder;
            or several YAML files, merged in order.
        overrides: Overrides as on the command line, such as ``"optimizer.lr=1e-4"``.
        keep_unset: Whether environment variables that are not set are allowed, for `plan`.

    Returns:
        The config of a `Trainer`, or of the subclass that the source names.

    Raises:
        UserError: The config has mistakes. The message lists all of them with their locations.
    """
    sources = fspath(source) if isinstance(source, (str, PathLike)) else [fspath(file) for file in source]
    loaded = load(sources, overrides, keep_unset=keep_unset)
    for warning in loaded.warnings:
        if not (keep_unset and "WORLD_SIZE" in warning):  # of a plan, `gpus` sets the number of processes
            logger.warning("%s", warning)
    return loaded.raw


def plan(
    run: PathText | Trainer.Config, *, gpus: int | None = None, gpu: str = "h100-80", encoded: bool = False
) -> Plan:
    """Plans a run as `worldsmith plan` does: memory, disk space and time, without a GPU.

    One step of the run's own code is simulated without allocating memory, which can last up to a minute. Data, weights
    and environment variables may be missing; `Plan.assumptions` lists what was assumed instead.

    Args:
        run: A config, or any source that `load_config` accepts.
        gpus: Number of GPUs; None: the minimum that the run's parallelism degrees allow.
        gpu: Type of the GPUs, such as ``"h100-80"``, or their memory, such as ``"24GB"``.
        encoded: Whether all clips are in the latent cache before the run.

    Returns:
        The plan: memory by phase and whether it fits, host RAM, disk space, seconds per step and of the run.

    Raises:
        UserError: The config has mistakes, no GPU type has this name, or the run cannot be planned.
    """
    with user_errors():
        config = load_config(run, keep_unset=True) if isinstance(run, (str, PathLike)) else run
        loaded = Loaded(resolve(config, keep_unset="names"), raw=config)
        kind: Any = command_classes("plan")[""]
        return kind.Config(gpus=gpus, gpu=gpu, encoded=encoded).build(run=loaded).exact


def generate(
    model: PathText,
    prompts: str | Sequence[str] = (),
    *,
    out: PathText = "generated",
    num_frames: int | None = None,
    num_steps: int | None = None,
    guidance: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    force: bool = False,
    **flags: Any,
) -> Result:
    """Generates videos or images as `worldsmith generate` does.

    Complete samples in `out` are not generated again: the same call resumes an interrupted one.

    Args:
        model: A run folder, a checkpoint, an export, a released model by its hub name, or adapters.
        prompts: One prompt, or several.
        out: Folder of the samples; each sample has its own folder in it.
        num_frames: Frames per video; None: as in the training data.
        num_steps: Sampling steps; None: the model's default.
        guidance: Guidance scale, 1 = off; None: the model's default.
        seed: Seed of the initial noise; None: the default of the command.
        device: ``"cpu"`` or ``"cuda"``; None: cuda if it is available.
        force: Whether existing samples are replaced.
        flags: Further flags of `worldsmith generate`, with ``_`` instead of ``-``.

    Returns:
        A result whose `facts["samples"]` has one entry per sample: its settings, and in `file` the path of the video.

    Raises:
        UserError: A flag has a mistake, or the model does not support the requested samples.
        OSError: A file cannot be read or written.
    """
    settings = {
        "model": model,
        "prompt": [prompts] if isinstance(prompts, str) else prompts,
        "out": out,
        "num_frames": num_frames,
        "num_steps": num_steps,
        "guidance": guidance,
        "seed": seed,
        "device": device,
        "force": force,
        **flags,
    }
    return _run_for_model("generate", settings)


def export(
    model: PathText,
    out: PathText | None = None,
    *,
    format: str | None = None,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    weights: Literal["auto", "ema", "live"] = "auto",
    merge: bool = True,
    force: bool = False,
    **flags: Any,
) -> Result:
    """Exports a trained model as `worldsmith export` does, as a folder that other libraries load.

    Args:
        model: A run folder, or one of its checkpoints.
        out: The new folder; None: a folder in the run folder.
        format: ``"diffusers"``, ``"hf"`` (transformers), ``"native"``, ``"adapter"`` (PEFT), ``"comfyui"`` or
            ``"sat"``; None: the complete model in the format of its library.
        dtype: Dtype of the weights.
        weights: EMA weights (``"ema"``) or raw weights (``"live"``); ``"auto"``: EMA weights if the run has them.
        merge: Whether LoRA adapters are merged into the weights.
        force: Whether an existing export is replaced.
        flags: Further flags of `worldsmith export`, with ``_`` instead of ``-``.

    Returns:
        A result whose `facts` have the `folder`, the `format`, the `dtype`, which `weights` they are and their
        `iteration`.

    Raises:
        UserError: A flag has a mistake, or the model cannot be exported in this format.
        OSError: A file cannot be read or written.
    """
    settings = {
        "model": model,
        "out": out,
        "format": format,
        "dtype": dtype,
        "weights": weights,
        "merge": merge,
        "force": force,
        **flags,
    }
    (kind,) = command_classes("export").values()
    return _run("export", kind, settings)


def evaluate(
    model: PathText,
    *,
    out: PathText,
    dataset: PathText | Configurable.Config | None = None,
    device: str | None = None,
    force: bool = False,
    **flags: Any,
) -> Result:
    """Evaluates a model as `worldsmith evaluate` does: a generator's videos, or a reasoner's answers.

    Args:
        model: A run folder, a checkpoint, an export, or a released model by its hub name.
        out: Folder of the results.
        dataset: For a generator, a dataset of clips that it was not trained on. For a reasoner, the config of a dataset
            of conversations, such as ``LlavaDataset.Config(path="questions.json")``.
        device: ``"cpu"`` or ``"cuda"``; None: cuda if it is available.
        force: Whether existing results are replaced.
        flags: Further flags of `worldsmith evaluate`, with ``_`` instead of ``-``.

    Returns:
        A result whose `facts` are the content of the file that is written (evaluation.json, or metrics.json), and whose
        `lines` are a table as text.

    Raises:
        UserError: A flag has a mistake, or the model cannot be evaluated on these data.
        OSError: A file cannot be read or written.
    """
    settings = {"model": model, "out": out, "device": device, "force": force, **flags}
    if dataset is not None:  # only the class for video generators has a default
        settings["dataset"] = dataset
    return _run_for_model("evaluate", settings)


def _run_for_model(name: str, settings: Mapping[str, Any]) -> Result:
    """Runs the command `name` with the class for the model `settings["model"]` (video generator or reasoner).

    `settings`: value by field name of that class, such as "model", "out" and "device".
    """
    with user_errors():
        base = settings.get("base")
        kind = command_class_for_model(name, fspath(settings["model"]), base=None if base is None else fspath(base))
    return _run(name, kind, settings)


def _run(name: str, kind: type[Action], settings: Mapping[str, Any]) -> Result:
    """Builds the class `kind` of the command `name` from `settings` (field -> value), runs it and returns its result.

    Raises UserError for invalid settings.
    """
    draft = Draft(source=name)
    data = {key: _to_plain(value) for key, value in settings.items()}
    draft.tree = read_tree(data, kind.Config, draft.problems)
    draft.broken = [problem.keys for problem in draft.problems if problem.path]
    with user_errors():
        try:
            loaded = finish(draft)
        except ConfigError as error:
            raise ConfigError(error.problems, where=f"the arguments of {name}()") from error
        for warning in loaded.warnings:
            logger.warning("%s", warning)
        action: Action = loaded.tree.build()
        return action.run()


def _to_plain(value: Any) -> Any:
    """Converts an argument to plain data: paths to strings, tuples to lists, configs to dicts with their class."""
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return fspath(value) if isinstance(value, PathLike) else to_plain(value)
