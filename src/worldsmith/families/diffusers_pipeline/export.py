"""A trained model as a folder that its pipeline of diffusers loads."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from worldsmith import __version__
from worldsmith.checkpoint.formats.export_folder import (
    count_numbers,
    facts_of,
    may_write,
    origin_of,
    publish_export,
    weights_digest,
)
from worldsmith.checkpoint.formats.family_formats import DType, Export, ExportOptions
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.tree.plain import to_dict
from worldsmith.families.diffusers_pipeline.formats import PIPELINE_INDEX, PipelineFormats, set_field
from worldsmith.files.atomic import folder_aside
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from torch import Tensor


def export_stored(model: StoredModel, out: Path, options: ExportOptions) -> bool:
    """Writes the pipeline folder `out`; False when the same export is there already.

    Raises ValueError for a model that no pipeline can hold.
    """

    formats = cast(PipelineFormats, model.formats)
    check_stored(model)
    model.require_effect()
    generator = model.load(full_precision=True)
    weights = exported_weights(formats, generator, options.dtype)
    about = {
        "worldsmith": __version__,
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers")},
        "format": "diffusers",
        "pipeline": formats.pipeline_class(model.config),
        "source": asdict(origin_of(model, merge=True)),
        "dtype": options.dtype,
        "weights_sha256": weights_digest(weights),
        "vae": generator.latent_fingerprint,
        "generation": asdict(generator.defaults),
        "model": described(formats, model),
        "card": {"parameters": count_numbers({name: w.shape for name, w in weights.items()}), **facts_of(model)},
    }
    if not may_write(out, about, options.force, index=PIPELINE_INDEX):
        return False
    with folder_aside(out) as aside:
        build_pipeline(formats, generator, weights, options.dtype).save_pretrained(aside)
        formats.finish(generator, aside)
        (aside / "README.md").write_text(formats.card(out.name, about), encoding="utf-8")
        publish_export(aside, out, about, force=options.force)
    return True


def check_stored(model: StoredModel) -> None:
    """Raises ValueError for a model that no pipeline can hold."""
    cast(PipelineFormats, model.formats).check_exportable(model.config)


def stored_weights(model: StoredModel, options: ExportOptions) -> dict[str, Tensor]:
    """`exported_weights` of a model on disk."""
    return exported_weights(cast(PipelineFormats, model.formats), model.load(full_precision=True), options.dtype)


def exported_weights(formats: PipelineFormats, generator: Any, dtype: DType) -> dict[str, Tensor]:
    """The network's weights, which have their names of diffusers already."""
    dtype_of = formats.stored_dtype(dtype, generator.config)
    return {name: p.detach().cpu().to(dtype_of(name)) for name, p in native_parameters(generator.network).items()}


DIFFUSERS = Export("export", PIPELINE_INDEX, "pipeline", export_stored, stored_weights, check_stored, of_library=True)


def described(formats: PipelineFormats, model: StoredModel) -> dict[str, Any]:
    """The model as the folder describes it: its components are in the folder."""
    config = copy.deepcopy(model.merged_spec.config)
    for path in formats.component_names(config):
        set_field(config, path, ".")
    return to_dict(replace(model.merged_spec, config=config))


def build_pipeline(formats: PipelineFormats, generator: Any, weights: dict[str, Tensor], dtype: DType) -> Any:
    """The pipeline object."""
    import diffusers
    import torch

    config = generator.config
    with torch.device("meta"):
        transformer = generator.make_network()
    # Tables that are saved with the weights, without being any, stay as they are.
    transformer.load_state_dict({**generator.network.state_dict(), **weights}, assign=True)
    text = replace(config.text_encoder, precision=dtype).build()
    text.load("cpu")
    vae = replace(config.tokenizer, precision=dtype).build(device="cpu").library_model
    parts = {"transformer": transformer, "vae": vae, **text.parts}
    scheduler, pipeline = formats.scheduler(generator), getattr(diffusers, formats.pipeline_class(config))
    return pipeline(**formats.arrange(generator, parts, dtype), scheduler=scheduler)
