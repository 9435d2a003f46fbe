"""Keys of the recipe TOML: type, documented default, docstring and path in the config.

The default is the documented one; a key that a file omits keeps the value of the recipe. Modules of recipes, also of
other packages, add their own keys:

    toml_keys("trainer.callbacks.alarm", LossAlarm.Config, "above")
    toml_keys("dataloader_train", VideoDataset.Config, "min_frames", at="dataloader_train.dataset")
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from worldsmith.config.declare.configurable import OPAQUE, Config, field_hints, unknown_field
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.recipes.registry import import_shipped
from worldsmith.config.sections import (
    ActivationCheckpointingConfig,
    CompileConfig,
    JobConfig,
    ParallelismConfig,
)
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import MISSING, class_defaults

TASKS = ("vfm", "vlm")


@dataclass(frozen=True, slots=True)
class TomlField:
    """One key of the recipe TOML.

    Attributes:
        path: Path of the key in the file.
        type: Type hint as in a Config.
        default: Documented default; `MISSING` without one.
        about: Docstring of the key, or the Config class whose field has the docstring.
    """

    path: tuple[str, ...]
    type: Any
    default: Any
    about: str | type[Config]
    at: Path | None = None
    """Config path of a key that `toml_keys` has added; for other keys see `REMAPS`."""
    only: str | None = None
    """The only task for which a key of `toml_keys` has an effect; None: all tasks."""

    @property
    def doc(self) -> str:
        return self.about if isinstance(self.about, str) else field_docs(self.about).get(self.path[-1], "")


def toml_keys(section: str, config: type[Config], *names: str, at: str | None = None, only: str | None = None) -> None:
    """Adds keys to a section of the recipe TOML: fields of a Config class, with their types, defaults and docstrings.

    Several model families may add the same key for the same config path; the key then has the union of their types.

    Args:
        section: Section of the recipe TOML, such as ``trainer.callbacks.alarm``.
        config: Class with the fields.
        *names: Names of the fields; none: all fields except those of `EXCLUDED`.
        at: Path of the class in the config; None: `section`.
        only: Task for which the keys have an effect, "vfm" or "vlm"; None: both tasks.

    Raises:
        TypeError: If a name is not a field.
        ValueError: If a key exists for another path or task.
    """
    hints, defaults = field_hints(config), class_defaults(config)
    for name in names or _reachable(section, config):
        if name not in hints:
            raise TypeError(unknown_field(config, name))
        path, target = (*section.split("."), name), (*(at or section).split("."), name)
        entry = TomlField(path, hints[name], defaults.get(name, MISSING), config, target, only)
        taken = _ADDED.get(path) or next((known for known in FIELDS if known.path == path), entry)
        if (taken.at, taken.only) != (target, only):
            raise ValueError(f"the recipe TOML already has a key {format_path(path)}, for another path or task")
        _ADDED[path] = replace(taken, type=taken.type | entry.type)


def toml_fields() -> list[TomlField]:
    """Returns all keys of the recipe TOML by section, in the order in which files are written."""
    entries = [*FIELDS, *_added().values()]
    sections = [entry.path[:-1] for entry in entries]
    roots = [*((name,) for name in SECTIONS), *(entry.path[:1] for entry in entries)]
    return sorted(entries, key=lambda e: (e.path == (OPAQUE,), roots.index(e.path[:1]), sections.index(e.path[:-1])))


_ADDED: dict[Path, TomlField] = {}


def _added() -> dict[Path, TomlField]:
    import_shipped()
    return _ADDED


def _section(name: str, *rows: tuple[str, Any, Any, str]) -> list[TomlField]:
    return [TomlField((*name.split("."), key), kind, default, doc) for key, kind, default, doc in rows]


ADDED_LATER = "it was added after the format was defined"
EXCLUDED: dict[Path, str] = {
    **{
        ("model", "activation_checkpointing", name): ADDED_LATER
        for name in ("layer_fraction", "other_layers", "offload", "save_every_second_matmul")
    },
    **{("model", "parallelism", name): ADDED_LATER for name in ("offload", "offload_fraction")},
    ("model", "parallelism", "reduce_every_pack"): f"{ADDED_LATER}; set it with an override",
}
"""Config fields that are not keys of the recipe TOML, although the other fields of their class are: path of the key ->
reason. `toml_keys` can add them."""


def _reachable(section: str, config: type[Config]) -> list[str]:
    """Returns the names of all fields of a Config class except those that `EXCLUDED` lists for the TOML section."""
    return [name for name in field_hints(config) if (*section.split("."), name) not in EXCLUDED]


def _fields(section: str, config: type[Config], **defaults: Any) -> list[TomlField]:
    """Returns the fields of a Config class as keys of a TOML section.

    Args:
        section: Section of the recipe TOML.
        config: Class with the fields.
        **defaults: Documented defaults of the format that differ from those of the class.
    """
    defaults, hints = {**class_defaults(config), **defaults}, field_hints(config)
    names = _reachable(section, config)
    return [TomlField((*section.split("."), name), hints[name], defaults[name], config) for name in names]


SECTIONS = ("job", "model", "optimizer", "scheduler", "trainer", "checkpoint", "dataloader_train")
"""Order of the sections in written files; sections of other packages come last."""

FIELDS: tuple[TomlField, ...] = (
    *_fields("job", JobConfig),
    *_section(
        "model",
        (
            "attn_implementation",
            Literal["cosmos", "flash_attention_2", "sdpa", "eager"],
            "cosmos",
            "Attention implementation of the Hugging Face backbone. vlm only.",
        ),
        ("lora_enabled", bool, False, "Train low-rank adapters (LoRA) instead of the weights."),
        ("lora_rank", int, 16, "Rank of the LoRA adapters."),
        ("lora_alpha", int, 32, "LoRA alpha: the adapters are scaled by alpha / rank."),
        ("precision", str, "bfloat16", "Dtype of the forward and backward pass."),
    ),
    *_section(
        "model.ema",
        ("enabled", bool, True, "Maintain EMA weights."),
        ("rate", float, 0.1, "Width of the EMA as a fraction of the training length."),
        ("iteration_shift", int, 0, "Steps added to the iteration counter of the EMA."),
    ),
    *_fields("model.parallelism", ParallelismConfig),
    *_fields("model.compile", CompileConfig),
    *_fields("model.activation_checkpointing", ActivationCheckpointingConfig, mode="full"),
    *_section(
        "model.backbone",
        ("model_name", str, MISSING, "Hub name or folder of the backbone. vlm only."),
        ("safetensors_path", str, MISSING, "Weights to load instead of the backbone's own. vlm only."),
    ),
    *_section(
        "scheduler",
        ("cycle_lengths", list[int], [20000], "Steps per cycle."),
        ("f_max", list[float], [1.0], "Learning-rate factor at the end of the warm-up, per cycle."),
        ("f_min", list[float], [0.0], "Learning-rate factor at the end of the cycle, per cycle."),
        ("f_start", list[float], [1e-6], "Learning-rate factor at the start of the warm-up, per cycle."),
        ("verbosity_interval", int, 0, "Steps between log lines of the learning rate; 0: no such lines. vfm only."),
        ("warm_up_steps", list[int], [100], "Steps of linear warm-up, per cycle."),
    ),
    *_section(
        "trainer",
        ("distributed_parallelism", str, "fsdp", "Distributed strategy."),
        ("grad_accum_iter", int, 1, "Packs per optimizer step and rank."),
        ("logging_iter", int, 50, "Steps between log lines."),
        ("max_iter", int, 500, "Optimizer steps of the run."),
    ),
    *_section(
        "trainer.callbacks.grad_clip",
        ("clip_norm", float, 1.0, "Max L2 norm of the gradient."),
        ("force_finite", bool, True, "Replace NaN and infinite gradients by zero."),
    ),
    *_section(
        "checkpoint",
        (
            "keys_to_skip_loading",
            list[str],
            [],
            "Substrings of tensor names; tensors with one of them are not loaded from the checkpoint of the initial "
            "weights.",
        ),
        ("load_path", str, MISSING, "Checkpoint folder of the initial weights."),
        ("save_iter", int, 100, "Steps between checkpoints."),
    ),
    *_section(
        "dataloader_train",
        (
            "max_samples_per_batch",
            int | None,
            None,
            "Samples per pack; if the file sets only this limit, it replaces the recipe's limit of tokens.",
        ),
        (
            "max_sequence_length",
            int | None,
            None,
            "Tokens per pack; if the file sets only this limit, it replaces the recipe's limit of samples.",
        ),
        ("seed", int, 42, "Seed of the data order. vfm only."),
    ),
    TomlField((OPAQUE,), dict[str, Any], {}, "The project's own data; not interpreted."),
)

REFUSED = {
    ("job", "upload_reproducible_setup"): "the setup is not uploaded to an object store; write false or remove the key",
}
"""Keys of the recipe TOML that are not supported and must be false: path of the key -> reason."""

_MODEL = ("model",)
_CONFIG = ("model", "config")
_POLICY = ("model", "config", "policy")
_LOADER = ("dataloader_train",)

REMAPS: dict[str, dict[Path, Path | None]] = {
    "vfm": {
        _MODEL: _CONFIG,
        (*_MODEL, "attn_implementation"): None,
        (*_MODEL, "backbone"): None,
    },
    "vlm": {
        _MODEL: _CONFIG,
        (*_MODEL, "attn_implementation"): (*_POLICY, "attn_implementation"),
        (*_MODEL, "backbone"): (*_POLICY, "backbone"),
        (*_LOADER, "seed"): None,
        ("optimizer", "eps"): None,
        ("scheduler", "verbosity_interval"): None,
    },
}
"""Per task: prefix of a TOML path -> prefix in the config, or None if the key has no effect. Other paths
are unchanged."""

_CLIPS = ("dataloader_train", "dataloader", "datasets", "video", "dataset")
PUBLISHED_PATHS: dict[Path, Path] = {
    ("upload_reproducible_setup",): ("job", "upload_reproducible_setup"),
    _CLIPS: (*_LOADER, "dataset"),
    (*_CLIPS, "max_caption_tokens"): (*_LOADER, "max_caption_tokens"),
    (*_LOADER, "batcher"): _LOADER,
    (*_LOADER, "batcher", "max_batch_size"): (*_LOADER, "max_samples_per_batch"),
    (*_LOADER, "batcher", "max_tokens"): (*_LOADER, "max_sequence_length"),
    (*_LOADER, "max_batch_size"): (*_LOADER, "max_samples_per_batch"),
    (*_LOADER, "max_tokens"): (*_LOADER, "max_sequence_length"),
}
"""Prefix of a config path of cosmos_framework -> prefix in the config of this package, where they differ."""


def published_path(path: Path) -> Path | None:
    """Converts a config path of cosmos_framework to one of this package; None if no conversion is needed."""
    for length in range(len(path), 0, -1):
        if path[:length] in PUBLISHED_PATHS:
            return (*PUBLISHED_PATHS[path[:length]], *path[length:])
    return None


def remap(path: Path, task: str) -> Path | None:
    """Converts a TOML path to a config path; the rule with the longest matching prefix applies.

    Args:
        path: Path of a key in the recipe TOML.
        task: Task of the recipe, "vfm" or "vlm".

    Returns:
        Path in the config, which equals `path` if no rule matches; None if the key has no effect for the task.
    """
    rules, added = REMAPS[task], _added()
    for length in range(len(path), 0, -1):
        if rules.get(path[:length], path) is None:
            return None
        if entry := added.get(path[:length]):
            return None if entry.only not in (None, task) else (*(entry.at or ()), *path[length:])
        if target := rules.get(path[:length]):
            return (*target, *path[length:])
    return path
