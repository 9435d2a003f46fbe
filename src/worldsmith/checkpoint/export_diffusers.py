"""A trained generator as a folder that `diffusers.Cosmos3OmniPipeline.from_pretrained` loads."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith import __version__
from worldsmith.checkpoint import atomic
from worldsmith.checkpoint.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.checkpoint.load_model import MANIFEST, PIPELINE_INDEX
from worldsmith.checkpoint.model_card import model_card
from worldsmith.config.tree import to_dict
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.cosmos3.generator import Cosmos3Generator

DType = Literal["float32", "bfloat16"]
KEPT_IN_FLOAT32 = "time_embedder."


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Where exported weights come from."""

    run: str = ""
    """project/group/name of the run."""
    iteration: int = 0
    """Optimizer steps behind the weights."""
    weights: Literal["ema", "live", "untrained"] = "live"


def export_pipeline(
    generator: Cosmos3Generator,
    out: str | Path,
    *,
    source: ExportSource | None = None,
    dtype: DType = "bfloat16",
    force: bool = False,
    max_shard_size: str = "10GB",
) -> bool:
    """Writes the pipeline folder `out`; False when the same export is there already.

    The folder appears when it is complete. It samples with the schedule that `generator.defaults.shift` gives.
    Raises ValueError when that shift is not known, FileExistsError when `out` is something else (`force` replaces an
    older export, never other files).
    """
    out = Path(out)
    weights = exported_weights(generator, dtype)
    manifest = describe(generator, source or ExportSource(), dtype, weights)
    if not may_write(out, manifest, force):
        return False
    aside = out.with_name(f"{atomic.SAVING}{out.name}")
    if aside.exists():
        shutil.rmtree(aside)
    out.parent.mkdir(parents=True, exist_ok=True)
    build_pipeline(generator, weights, dtype).save_pretrained(aside, max_shard_size=max_shard_size)
    (aside / "README.md").write_text(model_card(out.name, manifest), encoding="utf-8")
    manifest["files"] = {str(p.relative_to(aside)): p.stat().st_size for p in sorted(aside.rglob("*")) if p.is_file()}
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    atomic.publish_folder(aside, out)
    return True


def exported_weights(generator: Cosmos3Generator, dtype: DType) -> dict[str, Tensor]:
    """The network's tensors under their diffusers names; the time embedder stays float32, as diffusers keeps it."""
    import torch

    target = getattr(torch, dtype)
    weights = {native_to_diffusers(name): p.detach().cpu() for name, p in generator.network.named_parameters()}
    return {name: p if name.startswith(KEPT_IN_FLOAT32) else p.to(target) for name, p in weights.items()}


def build_pipeline(generator: Cosmos3Generator, weights: dict[str, Tensor], dtype: DType) -> Any:
    """The pipeline object. Its schedule is `flow_schedule`'s, its prompts have no system prompt, as in training."""
    import diffusers
    import torch

    library: Any = diffusers  # its classes carry no types
    with torch.device("meta"):
        transformer = library.Cosmos3OmniTransformer(**transformer_config(generator.config.network))
    transformer.load_state_dict(weights, assign=True)
    vae_folder = generator.config.tokenizer.vae_path
    return library.Cosmos3OmniPipeline(
        transformer=transformer,
        text_tokenizer=generator.text_tokenizer.tokenizer,
        vae=library.AutoencoderKLWan.from_pretrained(
            vae_folder, torch_dtype=getattr(torch, dtype), local_files_only=True
        ),
        scheduler=library.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=generator.defaults.shift
        ),
        enable_safety_checker=False,
        default_use_system_prompt=False,
        use_native_flow_schedule=True,
    )


def describe(
    generator: Cosmos3Generator, source: ExportSource, dtype: DType, weights: dict[str, Tensor]
) -> dict[str, Any]:
    """The manifest without its list of files."""
    if generator.defaults.shift is None:
        raise ValueError(
            "the schedule of an exported pipeline needs a shift, and the training run does not fix one number for it; "
            "give the shift to export with"
        )
    model = to_dict(ModelSpec(name="cosmos3", config=generator.config))
    model["config"]["tokenizer"]["vae_path"] = "vae"
    model["config"]["text_tokenizer"]["path"] = "text_tokenizer"
    return {
        "worldsmith": __version__,
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers")},
        "source": asdict(source),
        "dtype": dtype,
        "weights_sha256": weights_digest(weights),
        "vae": generator.latent_fingerprint,
        "generation": asdict(generator.defaults),
        "model": model,
    }


def weights_digest(weights: dict[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all tensors."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def may_write(out: Path, manifest: dict[str, Any], force: bool) -> bool:
    """False when `out` is this very export, complete. Raises FileExistsError when it may not be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / MANIFEST).is_file() or not (out / PIPELINE_INDEX).is_file():
        raise FileExistsError(f"{out} exists and is not an export; remove it yourself or choose another folder")
    present = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    complete = all((out / n).is_file() and (out / n).stat().st_size == size for n, size in present["files"].items())
    loose = ("files", "versions", "worldsmith")
    same = {k: v for k, v in present.items() if k not in loose} == {k: v for k, v in manifest.items() if k not in loose}
    if complete and same:
        return False
    if force:
        return True
    state = "another export" if complete else "an export with missing or changed files"
    raise FileExistsError(f"{out} is {state}; use --force to replace it, or choose another folder")
