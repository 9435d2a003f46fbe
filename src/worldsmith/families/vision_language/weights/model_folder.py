"""A model folder of Hugging Face transformers: its config.json, and the files that accompany its weights."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import flatten
from worldsmith.files.checksum_manifest import MANIFEST
from worldsmith.files.fingerprint import LINEAGE
from worldsmith.files.json_file import read_json_object, read_optional_json, section
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import local_folder, read_settings

logger = logging.getLogger(__name__)

CONFIG = "config.json"
FILES = (CONFIG, "*.json", "*.jinja", "*.txt", "*.model")
"""Name patterns of the config, tokenizer, chat template and preprocessor files."""
WEIGHT_INDEX = "*.index.json"
ORIGINS = "tensor_origins.json"
"""File in an assembled folder that records the source of each tensor."""
OTHERS = (CONFIG, WEIGHT_INDEX, ORIGINS, ABOUT, MANIFEST, "adapter_config.json", f"*{LINEAGE}", "quantization.json")
"""Name patterns of files that depend on the weights, so they are not copied to a folder with other weights."""
INCIDENTAL = ("max_position_embeddings", "initializer_range", "use_cache", "name_or_path", "attn_implementation")
"""Settings that do not change the output of stored weights."""
ROOM = "text_config", "vision_config"
DTYPES = ("dtype", "torch_dtype")
"""Keys of the dtype in config.json: that of transformers 5 and that of transformers 4."""
PREPROCESSOR_FILES = {
    "preprocessor_config.json": "image_processor",
    "video_preprocessor_config.json": "video_processor",
}
"""Files with the settings of images and of videos → section of `JOINT` that replaces a missing file."""
JOINT = "processor_config.json"
MIN_FRAMES, MAX_FRAMES = 4, 768
"""transformers' default limits of the number of frames, if a file does not state them."""
BY_FRAME: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
        "cap_pixels_per_frame": True,
        "max_video_tokens": 128_000,
    }
}
"""Model types whose pixel limits apply to one frame → video settings if the folder has no file for videos."""
SHARED = ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std", "resample", "rescale_factor")
"""Preprocessor settings that images and videos of a model share."""
CAPPED_SHARE = 0.9
"""Max fraction of `max_video_tokens` for one video."""


def find_folder(name: str, *, field: str) -> Path:
    """Returns the local model folder with this name; downloads its files, without weights, if needed.

    Args:
        name: Folder or hub repository.
        field: Config field with the name, for error messages.

    Raises:
        FileNotFoundError: If the folder exists neither on this machine nor on the hub.
    """
    return local_folder(name, file_patterns=FILES, field=field)


def copy_companions(source: Path, target: Path) -> list[str]:
    """Copies tokenizer, chat template and preprocessor files unchanged into the folder `target`; returns their names.

    Raises:
        UserError: If `source` has no tokenizer.
    """
    names = sorted(
        file.name
        for file in source.iterdir()
        if file.is_file() and matches_any(file.name, FILES) and not matches_any(file.name, OTHERS)
    )
    if not any(matches_any(name, ("tokenizer*", "*.model", "vocab.*")) for name in names):
        raise UserError(f"{source} has no tokenizer (tokenizer.json); expected a transformers model folder")
    for name in names:
        shutil.copyfile(source / name, target / name)
    return names


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Returns a copy of a config.json content that states `dtype` as the dtype of the weights."""
    changed = dict(config)
    for name in ROOM:
        if isinstance(changed.get(name), dict):
            changed[name] = {key: dtype if key in DTYPES else value for key, value in changed[name].items()}
    stated = [key for key in DTYPES if key in changed] or ["dtype"]
    return {**changed, **dict.fromkeys(stated, dtype)}


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a config.json that affect the output of its weights, by dotted path.

    Older spellings are converted as in transformers. Example key: `text_config.rope_parameters.rope_theta`.

    Raises:
        ValueError: If the config is not of transformers.
    """
    from transformers import CONFIG_MAPPING, PretrainedConfig

    kind = config.get("model_type")
    if kind is None or kind not in CONFIG_MAPPING:
        class_name = config.get("_class_name", "no class name either")
        found = f"model_type is {kind!r}" if kind else f"no model_type ({class_name})"
        raise ValueError(
            f"{found}; expected a transformers model. The language model of a generator becomes a reasoner with "
            "`worldsmith convert SOURCE --to vlm -o DIR`"
        )
    common = set(PretrainedConfig().to_dict()) - {"tie_word_embeddings"}
    parsed = CONFIG_MAPPING[kind].from_dict(dict(config)).to_dict()
    return {
        path: value
        for path, value in flatten(parsed).items()
        if (leaf := path.rpartition(".")[2]) not in common
        and not any(part in common for part in path.split("."))
        and not leaf.startswith("_")
        and leaf not in INCIDENTAL
        and not leaf.endswith(("token_id", "dropout"))
    }


def folder_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of the config.json in `folder` that affect the output of its weights, by dotted path.

    Raises:
        UserError: If config.json is not one of transformers; the message names the file.
    """
    try:
        return settings_of(read_settings(folder))
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error


def model_kind(config: Mapping[str, Any]) -> str | None:
    """Returns the task ("image-text-to-text" or "text-generation") of the model with this config.json content.

    None if transformers has no model class for it.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from worldsmith.families.vision_language.published import VISUAL

    kind = config.get("model_type")
    if kind in VISUAL:
        return "image-text-to-text"
    return "text-generation" if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else None


def is_quantized(folder: Path) -> bool:
    """Returns whether config.json in `folder` states that the weights are quantized."""
    file = folder / CONFIG
    return file.is_file() and "quantization_config" in read_json_object(file)


def unexpected_patterns(folder: Path) -> list[str]:
    """Returns regular expressions for stored tensors that the model class of `folder` ignores (a tied LM head)."""
    from transformers import AutoConfig

    config = load_from_folder(AutoConfig, folder)
    tied = any(getattr(part, "tie_word_embeddings", False) for part in (config, config.get_text_config()))
    return [*(model_class(config)._keys_to_ignore_on_load_unexpected or ()), *[r"^lm_head\.weight$"] * tied]


def model_class(config: Any) -> Any:
    """Returns the transformers model class for a config object of transformers."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    visual = model_kind({"model_type": config.model_type}) == "image-text-to-text"
    kind: Any = AutoModelForImageTextToText if visual else AutoModelForCausalLM
    return kind._model_mapping[type(config)]


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def write_media_limits(media: Mapping[str, Any], folder: Path, model_type: str = "") -> None:
    """Writes the image and video limits of a run into the preprocessor files of its export.

    Preprocessor files that are missing are not created. Exception: video_preprocessor_config.json, if the limits of
    videos apply to one frame (`BY_FRAME`), since transformers would then use the limits of images for videos.

    Args:
        media: Section `dataloader_train.processor.media` of the run's config, as plain data.
        folder: Exported model folder.
        model_type: `model_type` of config.json.
    """
    given = {name: value for name, value in media.items() if value is not None}
    joint = read_optional_json(folder / JOINT)
    by_frame = BY_FRAME.get(model_type)
    images, videos = PREPROCESSOR_FILES
    if by_frame is not None and (folder / images).is_file() and not (folder / videos).is_file():
        same = {name: value for name, value in read_json_object(folder / images).items() if name in SHARED}
        write_if_changed(folder / videos, {**same, **by_frame}, {})
    for name, part in PREPROCESSOR_FILES.items():
        own = (folder / name).is_file()
        if not own and not isinstance(joint.get(part), dict):
            continue
        stated = read_json_object(folder / name) if own else joint[part]
        changed = for_images(stated, given) if part == "image_processor" else for_videos(stated, given, by_frame)
        if own:
            write_if_changed(folder / name, changed, stated)
        else:
            write_if_changed(folder / JOINT, {**joint, part: changed}, joint)
            joint[part] = changed
    if by_frame is not None:
        return
    unsaid = [f"{name} = {given[name]}" for name in ("min_pixels", "max_pixels") if name in given]
    if unsaid:
        logger.warning(
            "the export cannot express the video limit %s: transformers limits the total pixels of a video, not those "
            "of a frame. Add --processor.media.%s to commands that use videos",
            *(" and ".join(unsaid), unsaid[0].replace(" = ", " ")),
        )


def for_images(stated: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return with_size(stated, given.get("min_pixels"), given.get("max_pixels"))


def for_videos(
    stated: dict[str, Any], given: Mapping[str, Any], by_frame: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the video settings of a preprocessor file with the limits of a run.

    A fixed number of frames (`nframes`) is stored as both min and max, since a preprocessor file cannot contain it
    together with a frame rate.

    Args:
        stated: Settings in the file.
        given: Limits of the run that are set, by the field names of `dataloader_train.processor.media`.
        by_frame: Default video settings of a model type whose pixel limits apply to one frame (an item of `BY_FRAME`);
            None: pixel limits apply to the complete video.
    """
    if by_frame is None:
        changed = with_size(stated, None, given.get("total_pixels"))
    else:
        stated = {**stated, **by_frame} if given.get("video_limits") == "qwen_vl_utils" else stated
        min_value, max_value = given.get("min_pixels"), given.get("max_pixels")
        stated_least = section(stated, "size").get("shortest_edge") or stated["min_pixels"]
        changed = with_size(stated, min_value or (max_value and min(stated_least, max_value)), max_value)
        if max_value is not None and max_value < stated_least:
            changed["cap_pixels_per_frame"] = False  # it would allow a frame more than `max_value` pixels
        if "total_pixels" in given:
            token = 2 * (stated["patch_size"] * stated["merge_size"]) ** 2 * CAPPED_SHARE
            changed |= {"cap_pixels_per_frame": True, "max_video_tokens": math.ceil(given["total_pixels"] / token)}
    if "fps" in given:
        changed["fps"] = given["fps"]
    min_value, max_value = (given.get("nframes", given.get(name)) for name in ("min_frames", "max_frames"))
    if max_value is not None:
        changed["max_frames"] = max_value
        min_value = min_value or min(changed.get("min_frames") or MIN_FRAMES, max_value)
    if min_value is not None:
        changed["min_frames"] = min_value
        changed["max_frames"] = max(changed.get("max_frames") or MAX_FRAMES, min_value)
    return changed


def with_size(stated: dict[str, Any], min_pixels: int | None, max_pixels: int | None) -> dict[str, Any]:
    """Returns a copy of preprocessor settings with changed pixel limits, which are stored under `size`.

    Args:
        stated: Settings in the file; older files state the limits outside of `size`.
        min_pixels: Min number of pixels; None: unchanged.
        max_pixels: Max number of pixels; None: unchanged.
    """
    if min_pixels is None and max_pixels is None:
        return dict(stated)
    changed = {name: value for name, value in stated.items() if name not in ("min_pixels", "max_pixels")}
    size = section(stated, "size")
    return changed | {
        "size": {
            "shortest_edge": min_pixels or size.get("shortest_edge") or stated.get("min_pixels"),
            "longest_edge": max_pixels or size.get("longest_edge") or stated.get("max_pixels"),
        }
    }


def write_if_changed(file: Path, changed: Mapping[str, Any], stated: Mapping[str, Any]) -> None:
    if changed != stated:
        file.write_text(json.dumps(changed, indent=2) + "\n", encoding="utf-8")
