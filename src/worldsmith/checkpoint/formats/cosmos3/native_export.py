"""The native Hugging Face style export: `config.json`, sharded safetensors with `model.net.…` keys, the tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith import __version__
from worldsmith.checkpoint.formats.cosmos3.model_card import native_card
from worldsmith.checkpoint.formats.cosmos3.tensor_names import NATIVE_PREFIX, NATIVE_TYPE
from worldsmith.checkpoint.formats.export_folder import (
    DType,
    ExportSource,
    is_whole,
    publish,
    read_manifest,
    same_export,
    written_aside,
)
from worldsmith.checkpoint.formats.write_safetensors import GIGABYTE, write_safetensors
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.tree.plain import to_dict
from worldsmith.models.cosmos3.text_tokenizer import FILES
from worldsmith.models.model_files import lasting_name
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from worldsmith.models.cosmos3.generator import Cosmos3Generator, GenerationDefaults

CONFIG, STEM = "config.json", "model"
TOKENIZER = "text_tokenizer"
KEPT_IN_FLOAT32 = "time_embedder."


def export_native(
    source: WeightSource,
    config: Cosmos3Generator.Config,
    out: str | Path,
    *,
    defaults: GenerationDefaults,
    origin: ExportSource | None = None,
    average: bool = False,
    dtype: DType = "bfloat16",
    force: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
) -> bool:
    """Writes the folder `out` from the weights of `source`; False when the same export is there already.

    The tokenizer is copied, the VAE is named by its hub name or its absolute path. The folder appears when it is
    complete. Raises FileExistsError when `out` is something else (`force` replaces an older export, never other files).
    """
    out = Path(out)
    origin = origin or ExportSource()
    present = read_manifest(out, CONFIG)
    model = to_dict(ModelSpec(name="cosmos3", config=config))
    model["config"]["text_tokenizer"]["path"] = TOKENIZER
    model["config"]["tokenizer"]["vae_path"] = lasting_name(config.tokenizer.vae_path)
    manifest = {
        "worldsmith": __version__,
        "versions": {name: version(name) for name in ("torch", "safetensors")},
        "format": "native",
        "source": asdict(origin),
        "dtype": dtype,
        "weights_sha256": (present or {}).get("weights_sha256", ""),
        "generation": asdict(defaults),
        "model": model,
    }
    if present is not None and not force and not (same_export(present, manifest) and is_whole(out, present)):
        raise another_export(out)
    with written_aside(out) as aside:
        keys = {name: NATIVE_PREFIX + name for name in source.shapes}
        manifest["weights_sha256"] = write_safetensors(
            aside, STEM, source, keys, stored_dtype(dtype), average=average, max_shard_size=max_shard_size
        )
        if present is not None and same_export(present, manifest) and is_whole(out, present):
            return False
        if present is not None and not force:
            raise another_export(out)
        copy_tokenizer(config.text_tokenizer.path, aside / TOKENIZER)
        (aside / CONFIG).write_text(json.dumps(native_config(manifest), indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(native_card(out.name, manifest), encoding="utf-8")
        publish(aside, out, manifest)
    return True


def another_export(out: Path) -> FileExistsError:
    return FileExistsError(f"{out} is another export or damaged; use --force to replace it, or choose another folder")


def stored_dtype(dtype: DType) -> Callable[[str], torch.dtype]:
    """All weights in `dtype` but the time embedder's, which every reader of such networks keeps in float32."""
    import torch

    target = getattr(torch, dtype)
    return lambda name: torch.float32 if name.startswith(KEPT_IN_FLOAT32) else target


def native_config(manifest: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json: the model type that readers look for, and the generator's whole config."""
    return {"model_type": NATIVE_TYPE, "dtype": manifest["dtype"], "model": manifest["model"]}


def copy_tokenizer(path: str, target: Path) -> None:
    from worldsmith.models.model_files import local_folder

    folder = local_folder(path, file_patterns=FILES, field="text_tokenizer.path")
    target.mkdir()
    for pattern in FILES:
        for file in folder.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)
