"""Assembles a vision-language model from the language model of a generator and the vision tower of a Qwen3-VL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    count_elements,
    new_export,
    require_free,
    require_place,
    state_versions,
)
from worldsmith.checkpoint.formats.export_weights import CONFIG, GIGABYTE, STEM, write_safetensors
from worldsmith.checkpoint.formats.family_formats import DType, formats_of
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.checkpoint.sources.vision_tower import find_tower
from worldsmith.checkpoint.sources.weight_source import JoinedWeights, WeightSource
from worldsmith.config.errors import UserError
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.weights.model_folder import FILES, ORIGINS, with_dtype
from worldsmith.files.json_file import read_json_object
from worldsmith.models.model_files import local_folder
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec

FAMILY = "vision_language"
VISUAL = "model.visual."
HEAD, TABLE = "lm_head.weight", "model.language_model.embed_tokens.weight"
STOCK = {4096: "Qwen/Qwen3-VL-8B-Instruct", 5120: "Qwen/Qwen3-VL-32B-Instruct"}
"""Hidden size of a released generator's language model → the model whose vision tower belongs to it."""


def assemble(
    path: str,
    out: str | Path,
    *,
    base: str | None = None,
    tower: str | None = None,
    dtype: DType | Literal["stored"] = "stored",
    force: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
) -> list[str]:
    """Writes a Qwen3-VL model folder with the language model of a video generator (Cosmos3) and a vision tower.

    The source of each tensor is recorded in `tensor_origins.json`. The written vision tower is compared with its source
    before the folder is moved to `out`.

    Args:
        path: Weights of the generator, in any format that `open_weights` accepts.
        out: The new model folder.
        base: Qwen3-VL folder that provides config, tokenizer, chat template and preprocessor settings; None: the
            released model of the language model's size.
        tower: Source of the vision tower; None: that of the generator, or of `base` if the generator has none.
        dtype: Dtype of the weights; "stored": that of each tensor in its source.
        force: Whether an earlier export in `out` is replaced; False: FileExistsError is raised if there is one.
        max_shard_size: Max bytes of a safetensors file.

    Returns:
        Lines for the user that state the sources of the weights.

    Raises:
        FileNotFoundError: If no weights are found.
        UserError: If tensors are missing or unexpected, the two models do not fit, or the written tower differs from
            its source.
        FileExistsError: If `out` contains other files than an export, or an export and `force` is False.
    """
    out = Path(out)
    require_place(out, CONFIG)
    require_free(out, CONFIG, force=force)
    source = open_weights(path, field="SOURCE")
    folder = local_folder(
        base or find_released_base(source), file_patterns=("*.safetensors", *FILES), field="--vlm-model-name"
    )
    config = read_json_object(folder / CONFIG)
    language = formats_of(source.family).language_weights(source, config)
    stock = required_tower(open_weights(folder, field="--vlm-model-name", family=FAMILY))
    chosen = find_tower(source) if tower is None else required_tower(open_weights(tower, field="--vision-tower"))
    visual = stock if chosen is None else chosen
    spec = spec_of(folder)
    wanted = {name: list(p.shape) for name, p in native_parameters(spec.config.build(device="meta").network).items()}
    if HEAD not in wanted and HEAD in language:
        require_tied(source, language)
        del language[HEAD]
    places = {name: (source, there) for name, there in language.items()}
    places |= {VISUAL + name: (visual, name) for name in visual.shapes}
    joined = JoinedWeights(f"{source.describe} on {visual.describe}", places)
    require_complete(joined, wanted)
    dtype_of = joined.dtype if dtype == "stored" else formats_of(FAMILY).stored_dtype(dtype)
    stated = str(dtype_of(TABLE)).removeprefix("torch.")
    about = describe_assembly(spec, source, visual, joined, stated)
    with new_export(out, about, formats_of(FAMILY).card, force=force) as aside:
        keys = {name: name for name in joined.shapes}
        about["weights_sha256"] = write_safetensors(
            aside, STEM, joined, keys, dtype_of, max_shard_size=max_shard_size
        )  # fmt: skip
        formats_of(FAMILY).pack_components(spec.config, aside)
        (aside / CONFIG).write_text(json.dumps(with_dtype(config, stated), indent=2) + "\n", encoding="utf-8")
        (aside / ORIGINS).write_text(json.dumps(origins(joined), indent=1) + "\n", encoding="utf-8")
        require_tower(aside, visual, dtype_of)
    return describe_sources(source, visual, stock, chosen, len(language))


def find_released_base(source: WeightSource) -> str:
    """Returns the hub name of the released Qwen3-VL whose vision tower fits the language model in `source`.

    Raises:
        UserError: If no released model has the hidden size of the language model.
    """
    width = source.settings.get("hidden_size")
    if width not in STOCK:
        raise UserError(
            f"{source.describe}: no released Qwen3-VL has the hidden size {width} of its language model, only "
            f"{', '.join(f'{name} {size}' for size, name in STOCK.items())}; set --vlm-model-name to a Qwen3-VL "
            "folder of its size"
        )
    return STOCK[width]


def required_tower(source: WeightSource) -> WeightSource:
    tower = find_tower(source)
    if tower is None:
        raise UserError(f"{source.describe} has no vision tower (model.visual.…); expected a Qwen3-VL folder")
    return tower


def spec_of(folder: Path) -> ModelSpec:
    config = VisionLanguageModel.Config()
    formats_of(FAMILY).set_component_folder(config, folder)
    return ModelSpec(name=FAMILY, config=config)


def require_tied(source: WeightSource, language: Mapping[str, str]) -> None:
    """Raises UserError if LM head and token embedding differ in `source`, but must be equal in the model folder.

    `language` maps tensor names of the model folder to names in `source`.
    """
    import torch

    if not torch.equal(source.read(language[HEAD]), source.read(language[TABLE])):
        raise UserError(
            f"{source.describe} has an LM head that differs from its embedding table, but the model folder "
            "ties the two (tie_word_embeddings); set another folder as --vlm-model-name"
        )


def require_complete(joined: WeightSource, wanted: Mapping[str, Sequence[int]]) -> None:
    """Raises UserError unless the tensors in `joined` have exactly the names and shapes in `wanted` (name → shape)."""
    problems = {
        "missing": [name for name in wanted if name not in joined.shapes],
        "not in a Qwen3-VL": [name for name in joined.shapes if name not in wanted],
        "with another shape": [n for n, shape in wanted.items() if list(joined.shapes.get(n, shape)) != list(shape)],
    }
    found = [f"{len(names)} {what} ({', '.join(names[:3])})" for what, names in problems.items() if names]
    if found:
        raise UserError(f"{joined.describe} is not a complete model: {'; '.join(found)}")


def require_tower(folder: Path, tower: WeightSource, dtype_of: Any) -> None:
    """Raises UserError unless the vision tower in the written `folder` equals `tower` bit for bit.

    Args:
        folder: The written model folder.
        tower: Source of the vision tower.
        dtype_of: Function from a tensor name in the folder to its stored torch.dtype.
    """
    import torch

    written = open_weights(folder, family=FAMILY)
    for name in tower.shapes:
        there = torch.empty(tower.shapes[name], dtype=dtype_of(VISUAL + name))
        tower.read_into({name: there})
        if not torch.equal(written.read(VISUAL + name), there):
            raise UserError(f"{VISUAL}{name} was written with other values than in {tower.describe}; try again")


def describe_assembly(
    spec: ModelSpec, source: WeightSource, visual: WeightSource, joined: WeightSource, dtype: str
) -> dict[str, Any]:
    """Returns the content of worldsmith.json of the assembled folder, except for the list of its files.

    It states library versions, the sources of the weights, their dtype, the model config and facts for the model card.

    Args:
        spec: The assembled model.
        source: Source of the language model.
        visual: Source of the vision tower.
        joined: All weights of the assembled model.
        dtype: Name of the stored dtype.
    """
    from worldsmith.families.vision_language.weights.export_reasoner import base_facts

    return {
        **state_versions("hf", "torch", "safetensors", "transformers"),
        "source": ExportSource().as_data(),
        "assembled_from": {"language": source.describe, "vision": visual.describe},
        "dtype": dtype,
        "generation": {},
        "model": formats_of(FAMILY).exported_config(spec),
        "card": {"parameters": count_elements(joined.shapes), **base_facts(spec)},
    }


def origins(joined: JoinedWeights) -> dict[str, Any]:
    """Returns the content of tensor_origins.json: source → {tensor name in the folder → name in the source}."""
    found: dict[str, dict[str, str]] = {}
    for name, (source, there) in sorted(joined.places.items()):
        found.setdefault(source.describe, {})[name] = there
    return found


def describe_sources(
    source: WeightSource, visual: WeightSource, stock: WeightSource, chosen: WeightSource | None, count: int
) -> list[str]:
    """Returns lines for the user that state the sources of the language model and of the vision tower.

    Args:
        source: Source of the language model.
        visual: Source of the vision tower.
        stock: Vision tower of the base model folder, with which `visual` is compared.
        chosen: Vision tower of the generator or of --vision-tower; None: neither exists, so `visual` is `stock`.
        count: Number of tensors of the language model.
    """
    language = f"language model: {count} tensors from {source.describe}"
    vision = f"vision tower: {len(visual.shapes)} tensors from {visual.describe}"
    if chosen is None:
        why = "because the source has no vision tower; correct if the language model was never trained with images"
        return [language, f"{vision}, {why}"]
    changed = sum(not has_same_values(visual, stock, name) for name in visual.shapes)
    return [language, f"{vision}; {changed} of them differ from those of {stock.describe}"]


def has_same_values(one: WeightSource, other: WeightSource, name: str) -> bool:
    import torch

    return name in other.shapes and bool(torch.equal(one.read(name).float(), other.read(name).float()))
