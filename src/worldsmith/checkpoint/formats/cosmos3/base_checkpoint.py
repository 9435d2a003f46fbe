"""Base checkpoints: weights of any source made into one of three folder formats, tensor by tensor.

What the source lacks by its nature (a reasoner has no generation tower and no heads) is made: copies of the
understanding tower, and initial values from a seed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from worldsmith import __version__
from worldsmith.checkpoint.formats.cosmos3.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.checkpoint.formats.cosmos3.native_export import CONFIG, STEM, native_config, stored_dtype
from worldsmith.checkpoint.formats.cosmos3.tensor_names import NATIVE_PREFIX
from worldsmith.checkpoint.formats.export_folder import DType, publish, read_manifest, require_place, written_aside
from worldsmith.checkpoint.formats.write_safetensors import GIGABYTE, write_safetensors
from worldsmith.checkpoint.sources.checkpoint_weights import LIVE
from worldsmith.checkpoint.sources.start_weights import StartWeights
from worldsmith.checkpoint.sources.warm_start import LoadReport, compare
from worldsmith.checkpoint.sources.weight_source import WeightSource, open_weights
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.models.cosmos3.architecture import NetworkConfig, edge, nano, super_
from worldsmith.models.cosmos3.generator import Cosmos3Generator
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

logger = logging.getLogger(__name__)

Format = Literal["dcp", "native", "diffusers"]
INDEX = {"dcp": "model", "native": CONFIG, "diffusers": CONFIG}
"""What every folder of the format has."""


def convert(
    path: str,
    out: str | Path,
    *,
    to: Format = "dcp",
    dtype: DType | Literal["stored"] = "stored",
    action_gen: bool = False,
    sound_gen: bool = False,
    seed: int = 0,
    force: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
) -> LoadReport:
    """Writes the folder `out` from the weights at `path`, and returns the account of every tensor.

    Args:
        path: what `open_weights` takes.
        to: dcp (what checkpoint.load_path reads fastest), native, or diffusers (a transformer folder).
        dtype: stored keeps each tensor's; initial values are float32.
        action_gen: make action heads where the source has none.
        sound_gen: make sound heads where the source has none.
        seed: of the initial values.
        force: replace what an earlier conversion wrote.

    The folder appears when it is complete. Raises FileNotFoundError when there are no weights, UserError when they are
    not those of such a network, FileExistsError when `out` may not be replaced.
    """
    out = Path(out)
    require_place(out, INDEX[to])
    if read_manifest(out, INDEX[to]) is not None and not force:
        raise FileExistsError(f"{out} exists; use --force to replace it, or choose another folder")
    source = open_weights(path, field="SOURCE")
    network = network_of(source, action_gen=action_gen, sound_gen=sound_gen)
    weights = StartWeights(network, seed, source)
    report = compare(
        source, {LIVE + name: shape for name, shape in weights.shapes.items()}, network=network,
        allow_initialised=[LIVE + head for head in heads_to_make(source, action_gen, sound_gen)],
    )  # fmt: skip
    dtype_of = weights.dtype if dtype == "stored" else stored_dtype(dtype)
    manifest = {
        "worldsmith": __version__,
        "versions": {name: version(name) for name in ("torch", "safetensors")},
        "format": to,
        "converted_from": source.describe,
        "dtype": dtype,
        "seed": seed,
        "tensors": {"loaded": len(report.loaded), "copied": len(report.copied), "initialised": len(report.initialised)},
        "model": to_dict(ModelSpec(name="cosmos3", config=Cosmos3Generator.Config(network=network))),
    }
    with written_aside(out) as aside:
        if to == "dcp":
            write_dcp(aside / "model", weights, dtype_of)
        else:
            key = native_to_diffusers if to == "diffusers" else NATIVE_PREFIX.__add__
            stem = "diffusion_pytorch_model" if to == "diffusers" else STEM
            keys = {name: key(name) for name in weights.shapes}
            write_safetensors(aside, stem, weights, keys, dtype_of, max_shard_size=max_shard_size)
            config = (
                {"_class_name": "Cosmos3OmniTransformer", **transformer_config(network)}
                if to == "diffusers"
                else native_config(manifest)
            )
            (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        publish(aside, out, manifest)
    return report


def network_of(source: WeightSource, *, action_gen: bool = False, sound_gen: bool = False) -> NetworkConfig:
    """The config of the network that the weights belong to, with the heads that are asked for besides.

    Raises UserError when the source does not say enough about it.
    """
    known = {field.name for field in fields(NetworkConfig)}
    settings = {name: value for name, value in source.settings.items() if name in known}
    missing = [name for name in ("hidden_size", "num_hidden_layers", "rope_theta") if name not in settings]
    tier = released_tier(source.shapes) if missing else None
    if tier is not None:
        settings = asdict(tier)
        logger.info("%s: no settings beside the weights; its shapes are those of a released network", source.describe)
    elif missing:
        raise UserError(
            f"{source.describe}: nothing says what {' and '.join(missing)} of this network are; a config.json with "
            "its settings belongs beside the weights"
        )
    settings["action_gen"] = action_gen or any(name.startswith("action2llm.") for name in source.shapes)
    settings["sound_gen"] = sound_gen or any(name.startswith("sound2llm.") for name in source.shapes)
    network = NetworkConfig(**settings)
    try:
        network.check()
    except ValueError as error:
        raise UserError(f"{source.describe}: {error}") from error
    return network


def released_tier(shapes: Mapping[str, list[int]]) -> NetworkConfig | None:
    """The released network (Edge, Nano, Super) whose towers have exactly these shapes; heads are not compared."""
    import torch

    from worldsmith.models.cosmos3.network import Cosmos3Network

    towers = {name: shape for name, shape in shapes.items() if name.startswith("language_model.")}
    for tier in (edge(), nano(), super_()):
        with torch.device("meta"):
            parameters = Cosmos3Network(tier).language_model.named_parameters(prefix="language_model")
            if towers == {name: list(parameter.shape) for name, parameter in parameters}:
                return tier
    return None


def heads_to_make(source: WeightSource, action_gen: bool, sound_gen: bool) -> list[str]:
    """The names that start the heads which are asked for and which the source lacks."""
    heads = {"action": ("action2llm.", "llm2action.", "action_modality_embed"),
             "sound": ("sound2llm.", "llm2sound.", "sound_modality_embed")}  # fmt: skip
    asked = {"action": action_gen, "sound": sound_gen}
    return [
        name
        for kind, names in heads.items()
        if asked[kind] and not any(stored.startswith(names[0]) for stored in source.shapes)
        for name in names
    ]


def write_dcp(folder: Path, source: WeightSource, dtype_of: Callable[[str], torch.dtype]) -> None:
    """Writes `net.*` as a torch.distributed.checkpoint folder; a tensor is read when its turn has come."""
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import MetadataIndex

    from worldsmith.checkpoint.dcp.parts import save_part

    class ReadingPlanner(DefaultSavePlanner):
        """Plans with tensors that have no memory, and reads each when it is to be written."""

        def lookup_object(self, index: MetadataIndex) -> Tensor:
            name = index.fqn.removeprefix(LIVE)
            value = torch.empty(source.shapes[name], dtype=dtype_of(name))
            source.read_into({name: value})
            return value

    state: Mapping[str, Any] = {
        LIVE + name: torch.empty(shape, dtype=dtype_of(name), device="meta") for name, shape in source.shapes.items()
    }
    planner = ReadingPlanner()
    planner.set_up_planner(cast(dict[str, Any], state))
    # One file for each tensor: the writer keeps all tensors of a file in memory until it is closed.
    save_part(folder, planner, single_file_per_rank=False)
