"""A model folder of Hugging Face transformers: what its config.json says, and the files beside its weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.config.errors import UserError
from worldsmith.files.fingerprint import LINEAGE
from worldsmith.files.json_file import read_json_object
from worldsmith.files.manifest import MANIFEST
from worldsmith.files.model_folder import load_from_folder
from worldsmith.models.model_files import local_folder, read_settings

CONFIG = "config.json"
FILES = (CONFIG, "*.json", "*.jinja", "*.txt", "*.model")
"""Config, tokenizer, chat template, and the preprocessors' settings."""
WEIGHT_INDEX = "*.index.json"
ORIGINS = "tensor_origins.json"
"""In an assembled folder: where each of its tensors comes from."""
OTHERS = (CONFIG, WEIGHT_INDEX, ORIGINS, ABOUT, MANIFEST, "adapter_config.json", f"*{LINEAGE}", "quantization.json")
"""Files that belong to the weights, not to what surrounds them."""
INCIDENTAL = ("max_position_embeddings", "initializer_range", "use_cache", "name_or_path", "attn_implementation")
"""Settings that change nothing in what stored weights compute."""
ROOM = "text_config", "vision_config"


def find_folder(name: str, *, field: str) -> Path:
    """The local model folder of a name. Raises FileNotFoundError when it is nowhere."""
    return local_folder(name, file_patterns=FILES, field=field)


def copy_companions(source: Path, target: Path) -> list[str]:
    """Copies tokenizer, chat template and preprocessor files as they are; returns their names.

    Raises UserError for a folder without a tokenizer.
    """
    names = sorted(
        file.name
        for file in source.iterdir()
        if file.is_file() and matches(file.name, FILES) and not matches(file.name, OTHERS)
    )
    if not any(matches(name, ("tokenizer*", "*.model", "vocab.*")) for name in names):
        raise UserError(f"{source} has no tokenizer (tokenizer.json); expected a model folder of transformers")
    for name in names:
        shutil.copyfile(source / name, target / name)
    return names


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The config.json of the same model with weights in `dtype`; everything else is as its makers wrote it."""
    changed = dict(config)
    for name in ROOM:
        if isinstance(changed.get(name), dict):
            changed[name] = {key: dtype if key in DTYPES else value for key, value in changed[name].items()}
    stated = [key for key in DTYPES if key in changed] or ["dtype"]
    return {**changed, **dict.fromkeys(stated, dtype)}


DTYPES = ("dtype", "torch_dtype")
"""The word of transformers 5, and that of 4."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what weights compute, flat: `text_config.rope_parameters.rope_theta` → its value.

    Older spellings are read as transformers reads them. Raises ValueError for a config that is not of transformers.
    """
    from transformers import CONFIG_MAPPING, PretrainedConfig

    kind = config.get("model_type")
    if kind is None or kind not in CONFIG_MAPPING:
        found = (
            f"model_type is {kind!r}" if kind else f"no model_type ({config.get('_class_name', 'nothing else said')})"
        )
        raise ValueError(
            f"{found}; expected a model of transformers. The language model of a generator becomes a reasoner by "
            "`worldsmith convert SOURCE --to vlm -o DIR`"
        )
    common = set(PretrainedConfig().to_dict()) - {"tie_word_embeddings"}
    parsed = CONFIG_MAPPING[kind].from_dict(dict(config)).to_dict()
    return {
        path: value
        for path, value in flat(parsed)
        if (leaf := path.rpartition(".")[2]) not in common
        and not any(part in common for part in path.split("."))
        and not leaf.startswith("_")
        and leaf not in INCIDENTAL
        and not leaf.endswith(("token_id", "dropout"))
    }


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def folder_settings(folder: Path) -> dict[str, Any]:
    """`settings_of` the config.json in a folder. Raises UserError, naming the file."""
    try:
        return settings_of(read_settings(folder))
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error


def model_kind(config: Mapping[str, Any]) -> str | None:
    """What transformers calls the task of the model that a config.json describes; None for one unknown here."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from worldsmith.families.vision_language.published import VISUAL

    kind = config.get("model_type")
    if kind in VISUAL:
        return "image-text-to-text"
    return "text-generation" if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else None


def is_quantized(folder: Path) -> bool:
    """Whether config.json says that the weights beside it are quantized."""
    file = folder / CONFIG
    return file.is_file() and "quantization_config" in read_json_object(file)


def unexpected_patterns(folder: Path) -> list[str]:
    """Regular expressions for stored weights that the model of a folder does without: its class's, a tied head."""
    from transformers import AutoConfig

    config = load_from_folder(AutoConfig, folder)
    tied = any(getattr(part, "tie_word_embeddings", False) for part in (config, config.get_text_config()))
    return [*(model_class(config)._keys_to_ignore_on_load_unexpected or ()), *[r"^lm_head\.weight$"] * tied]


def model_class(config: Any) -> Any:
    """The class of transformers for a parsed config."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    visual = model_kind({"model_type": config.model_type}) == "image-text-to-text"
    kind: Any = AutoModelForImageTextToText if visual else AutoModelForCausalLM
    return kind._model_mapping[type(config)]


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
