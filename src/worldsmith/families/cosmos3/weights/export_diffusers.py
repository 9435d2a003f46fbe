"""A trained generator as a folder that `diffusers.Cosmos3OmniPipeline.from_pretrained` loads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith import __version__
from worldsmith.checkpoint.formats.export_folder import (
    ExportSource,
    count_numbers,
    facts_of,
    may_write,
    origin_of,
    publish_export,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, ExportFormat, ExportOptions, formats_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.tree.plain import to_dict
from worldsmith.families.cosmos3.attention.modes import describe_modes
from worldsmith.families.cosmos3.model import Cosmos3Generator, read_attention
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.families.cosmos3.weights.model_card import pipeline_card
from worldsmith.families.diffusers_pipeline.sampling import make_unipc_scheduler
from worldsmith.files.atomic import folder_aside
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_model import GenerationDefaults

if TYPE_CHECKING:
    from torch import Tensor


FAMILY, PIPELINE_INDEX = "cosmos3", "model_index.json"


def export_stored_generator(model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """`export_pipeline` of a model on disk."""
    check_stored(model)
    model.require_effect()
    origin = origin_of(model, merge=True)
    generator = model.load(full_precision=True)
    return export_pipeline(
        generator, out, source=origin, card=facts_of(model), dtype=options.dtype, force=options.force
    )


def check_stored(model: StoredModel) -> None:
    """`require_exportable` of a model on disk."""
    require_exportable(model.config, model.defaults)


def stored_weights(model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """`exported_weights` of a model on disk."""
    return exported_weights(model.load(full_precision=True), options.dtype)


DIFFUSERS = ExportFormat(
    "export",
    PIPELINE_INDEX,
    "pipeline",
    export_stored_generator,
    stored_weights,
    check_stored,
    of_library=True,
    has_schedule=True,
)


def export_pipeline(
    generator: Cosmos3Generator,
    out: str | Path,
    *,
    source: ExportSource | None = None,
    card: Mapping[str, Any] | None = None,
    dtype: DType = "bfloat16",
    force: bool = False,
    max_shard_size: str | int = "10GB",
) -> bool:
    """Writes the pipeline folder `out`; False when the same export is there already.

    The folder appears when it is complete. It samples with the schedule that `generator.defaults.shift` gives.
    Raises ValueError when that shift is not known and for attention that diffusers does not have, FileExistsError when
    `out` is something else (`force` replaces an older export, never other files).
    """
    out = Path(out)
    require_exportable(generator.config, generator.defaults)
    weights = exported_weights(generator, dtype)
    about = describe_export(generator, source or ExportSource(), dtype, weights)
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    about["card"] = {"parameters": count_numbers(shapes), **(card or {})}
    if not may_write(out, about, force, index=PIPELINE_INDEX):
        return False
    with folder_aside(out) as aside:
        build_pipeline(generator, weights, dtype).save_pretrained(aside, max_shard_size=max_shard_size)
        (aside / "README.md").write_text(pipeline_card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about, force=force)
    return True


def require_exportable(config: Cosmos3Generator.Config, defaults: GenerationDefaults) -> None:
    """Raises ValueError for a model that a pipeline cannot hold; needs no weights."""
    attention = read_attention(config)
    if not attention.is_dense:
        raise ValueError(
            "diffusers has dense attention only, and this model has another one "
            f"({describe_modes(attention)}): its outputs would differ there; use --format native"
        )
    if defaults.shift is None:
        raise ValueError(
            "the schedule of an exported pipeline needs a shift, and the training run does not fix one number for it; "
            "give the shift to export with"
        )
    if not (defaults.shift > 0 and math.isfinite(defaults.shift)):
        raise ValueError(f"the schedule of an exported pipeline needs a positive shift, found {defaults.shift}")


def exported_weights(generator: Cosmos3Generator, dtype: DType) -> dict[str, Tensor]:
    """The network's tensors under their diffusers names; the time embedder stays float32, as diffusers keeps it."""
    dtype_of = formats_of(FAMILY).stored_dtype(dtype)
    return {
        native_to_diffusers(name): parameter.detach().cpu().to(dtype_of(name))
        for name, parameter in native_parameters(generator.network).items()
    }


def build_pipeline(generator: Cosmos3Generator, weights: dict[str, Tensor], dtype: DType) -> Any:
    """The pipeline object. Its noise levels are those of `Cosmos3Sampler`; its prompts have no system prompt."""
    import diffusers

    shift = generator.defaults.shift
    assert shift is not None, "refused before"

    library: Any = diffusers  # its classes carry no types
    transformer = make_transformer(generator.config)
    transformer.load_state_dict(weights, assign=True)
    return library.Cosmos3OmniPipeline(
        transformer=transformer,
        text_tokenizer=generator.text_tokenizer.tokenizer,
        vae=replace(generator.config.tokenizer, precision=dtype).build(device="cpu").model,
        scheduler=make_unipc_scheduler(shift),
        enable_safety_checker=False,
        default_use_system_prompt=False,
        use_native_flow_schedule=True,
    )


def make_transformer(config: Cosmos3Generator.Config) -> Any:
    """The network as diffusers has it, on the meta device."""
    import diffusers
    import torch

    library: Any = diffusers
    with torch.device("meta"):
        return library.Cosmos3OmniTransformer(**transformer_config(config.network))


def describe_export(
    generator: Cosmos3Generator, source: ExportSource, dtype: DType, weights: dict[str, Tensor]
) -> dict[str, Any]:
    """What the folder says about itself, without its list of files."""
    model = to_dict(ModelSpec(name=FAMILY, config=generator.config))
    model["config"]["tokenizer"]["vae_path"] = "vae"
    model["config"]["text_tokenizer"]["path"] = "text_tokenizer"
    return {
        "worldsmith": __version__,
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers")},
        "format": "diffusers",
        "source": asdict(source),
        "dtype": dtype,
        "weights_sha256": weights_digest(weights),
        "vae": generator.latent_fingerprint,
        "generation": asdict(generator.defaults),
        "model": model,
    }
