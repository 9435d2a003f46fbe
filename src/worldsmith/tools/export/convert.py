"""`worldsmith convert SOURCE`: builds a base checkpoint from weights in another format, tensor by tensor.

Weights that the source cannot have (a reasoner has no generation tower and no heads) are created: copies of the
understanding tower, and initial values from a seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from worldsmith.actions.action import Action, Result
from worldsmith.checkpoint.dcp.dcp_folder import checkpoint_of_model_folder, save_part
from worldsmith.checkpoint.formats.export_folder import publish_export, require_free, require_place, state_versions
from worldsmith.checkpoint.formats.export_weights import CONFIG, GIGABYTE, STEM, native_config, write_safetensors
from worldsmith.checkpoint.formats.family_formats import AddsHeads, DType, LoadsPipelineAdapters, assembling, formats_of
from worldsmith.checkpoint.formats.lora_file import (
    PIPELINE_WEIGHTS,
    UnknownTensorsError,
    find_lora_file,
    read_lora_file,
)
from worldsmith.checkpoint.formats.peft_adapter import export_adapter
from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout, StoredAdapter
from worldsmith.checkpoint.formats.weight_formats import FORMATS, NATIVE_PREFIX, ForeignCheckpoints
from worldsmith.checkpoint.sources.checkpoint_weights import LIVE
from worldsmith.checkpoint.sources.open_weights import StartWeights, open_weights
from worldsmith.checkpoint.sources.warm_start import LoadReport, compare_weights
from worldsmith.checkpoint.sources.weight_source import JoinedWeights, MergedWeights, WeightSource
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Seed
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.files.atomic import locked_temporary_folder
from worldsmith.models.lora import MATRICES, is_adapter
from worldsmith.models.model_files import local_folder
from worldsmith.models.spec import ModelSpec
from worldsmith.monitor.lineage import Input, write_lineage

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Format = Literal["dcp", "native", "diffusers", "sat"]
INDEX = {
    "dcp": "model",
    "native": CONFIG,
    "diffusers": CONFIG,
    "vlm": CONFIG,
    "sat": "latest",
    "adapter": "adapter_config.json",
}
"""Format -> a file or folder that every folder in this format contains."""


class Convert(Action):
    """Converts released or exported weights to a checkpoint, a diffusers folder, or another format (`--to`)."""

    places: ClassVar[tuple[str, ...]] = ("source",)
    aliases: ClassVar[dict[str, str]] = {"-o": "out", "--checkpoint-path": "source"}

    class Config(Action.Config):
        source: str
        """Diffusers pipeline or transformer folder, native export, reasoner folder in transformers' format, hub name
        (org/name) of one of these, a checkpoint, or a SAT folder or file."""
        out: str
        """Output folder."""
        to: Literal["dcp", "native", "diffusers", "sat", "adapter", "vlm"] = "dcp"
        """Format of the output. dcp: a checkpoint for checkpoint.load_path; native: safetensors with internal parameter
        names; diffusers: a transformer folder; sat: a folder for SAT's args.load, adapters included; adapter: a PEFT
        folder with the adapters of a SAT checkpoint or of a LoRA file of diffusers, ComfyUI, kohya's trainers or
        ai-toolkit; vlm: a reasoner for transformers, which combines the source's language model with a Qwen3-VL vision
        tower."""
        vlm_model_name: str | None = None
        """With vlm: Qwen3-VL folder that provides config, tokenizer, preprocessor settings, and the vision tower if the
        source has no vision tower; null: the released model whose language model has the same size."""
        vision_tower: str | None = None
        """With vlm: source of the vision tower; null: the source's own tower, otherwise that of vlm_model_name."""
        dtype: Literal["stored", "bfloat16", "float32"] = "stored"
        """Number format. stored: as in the source; newly initialized tensors are float32."""
        action_gen: bool = False
        """Add initialized action heads if the source has none."""
        sound_gen: bool = False
        """Add initialized sound heads if the source has none."""
        seed: Seed = 0
        """Seed of newly initialized values."""
        lora_alpha: Count | None = None
        """LoRA alpha of the source's adapters. They are merged into the weights, except with sat and adapter. null: the
        alpha that the source states, 1 for SAT."""
        vae: str | None = None
        """With sat: also write this VAE, as vae/3d-vae.pt; null: no VAE is written."""
        force: bool = False
        """Replace an earlier conversion."""

        def check(self) -> None:
            made = "action_gen", "sound_gen", "seed", "lora_alpha"
            of_vlm = "vlm_model_name", "vision_tower"
            others: dict[str, tuple[str, ...]] = {
                "vlm": (*made, "vae"),
                "sat": (*of_vlm, "lora_alpha"),
                "adapter": (*of_vlm, *made[:3], "vae"),
            }
            idle = others.get(self.to, (*of_vlm, "vae"))
            for name in idle:
                if getattr(self, name):
                    raise wrong(self, name, "to", why="the former has no effect here", remedy="omit it")

    config: Config

    def plan(self) -> Iterator[str]:
        config = self.config
        require_place(Path(config.out), INDEX[config.to])
        if config.to == "adapter":
            yield f"the adapters of {config.source} would be converted to {config.out}"
            return
        source = open_weights(config.source, field="SOURCE")
        yield f"{source.describe}, {len(source.shapes)} tensors, would be converted to {config.out} ({config.to})"

    def run(self) -> Result:
        config = self.config
        if config.to == "vlm":
            lines = assembling(config.to).assemble(
                config.source,
                config.out,
                base=config.vlm_model_name,
                tower=config.vision_tower,
                dtype=config.dtype,
                force=config.force,
            )
            use = "to train from it: model.config.policy.backbone.model_name="
            self.record(config.source, *filter(None, (config.vlm_model_name, config.vision_tower)))
        elif config.to == "adapter":
            lines = [convert_adapter(config.source, config.out, lora_alpha=config.lora_alpha, force=config.force)]
            use = "to use it: --adapter "
            self.record(config.source)
        else:
            report = convert(
                config.source,
                config.out,
                to=config.to,
                dtype=config.dtype,
                heads=["action"] * config.action_gen + ["sound"] * config.sound_gen,
                seed=config.seed,
                force=config.force,
                lora_alpha=config.lora_alpha,
                vae=config.vae,
            )
            lines, use = report.lines(), "to train from it: checkpoint.load_path="
            self.record(checkpoint_of_model_folder(Path(report.folder)))
        done = f"converted: {config.out} ({config.to}); {use}{config.out}"
        return Result([*lines, done], {"folder": config.out, "to": config.to, "tensors": lines})

    def record(self, *parts: str | Path) -> None:
        """Writes the lineage record of the output folder; `parts` are the paths of the weights that were read."""
        config, inputs = self.config, [Input("model", place) for place in parts]
        write_lineage(config.out, action="convert", settings=to_dict(config), inputs=inputs, outputs=["."])


def convert(
    path: str,
    out: str | Path,
    *,
    to: Format = "dcp",
    dtype: DType | Literal["stored"] = "stored",
    heads: Sequence[str] = (),
    seed: int = 0,
    force: bool = False,
    max_shard_size: int = 5 * GIGABYTE,
    lora_alpha: float | None = None,
    vae: str | None = None,
) -> LoadReport:
    """Converts the weights at `path` to another format. The folder `out` only appears when it is complete.

    Args:
        path: Folder, file or hub name of the weights, as `open_weights` accepts it.
        out: Output folder.
        to: Format: dcp (which checkpoint.load_path loads fastest), native, diffusers (a transformer folder), or sat.
        dtype: Dtype of the result; "stored" keeps each tensor's dtype, and newly initialized tensors are float32.
        heads: Heads ("action", "sound") to initialize if the source does not have them.
        seed: Seed of newly initialized tensors.
        force: Replace the result of an earlier conversion.
        max_shard_size: Maximum size of a safetensors shard in bytes.
        lora_alpha: Alpha of the source's adapters, which are merged (kept with sat); None: as the source states.
        vae: With sat: VAE that is also written, in a format that the config field vae_path accepts; None: no VAE.

    Returns:
        The report on how each tensor was loaded.

    Raises:
        FileNotFoundError: If there are no weights at `path`.
        UserError: If the weights do not belong to a supported network.
        FileExistsError: If `out` exists and must not be replaced.
    """
    out = Path(out)
    require_place(out, INDEX[to])
    require_free(out, INDEX[to], force=force)
    source = open_weights(path, field="SOURCE")
    spec = find_spec(source, heads)
    formats = formats_of(spec.name)
    source = source if to == "sat" else with_merged_adapters(source, lora_alpha)
    weights: WeightSource = StartWeights(spec, seed, source)
    if to == "sat":
        weights = with_adapters(weights, source)
    new_heads = formats.head_names(source, heads) if isinstance(formats, AddsHeads) else []
    report = compare_weights(
        source, {LIVE + name: shape for name, shape in weights.shapes.items()}, spec=spec,
        allow_initialised=[LIVE + name for name in new_heads],
    )  # fmt: skip
    dtype_of = weights.dtype if dtype == "stored" else formats.stored_dtype(dtype)
    about = {
        **state_versions(to, "torch", "safetensors"),
        "converted_from": source.describe,
        "dtype": dtype,
        "seed": seed,
        "tensors": {"loaded": len(report.loaded), "copied": len(report.copied), "initialised": len(report.initialised)},
        "model": to_dict(spec),
    }
    with locked_temporary_folder(out) as aside:
        if to == "dcp":
            write_dcp(aside / "model", weights, dtype_of)
        elif to == "sat":
            if not isinstance(formats, ForeignCheckpoints):
                raise formats.not_converted(to)
            formats.write_foreign(to, aside, spec, weights, dtype_of, vae)
        else:
            native = to == "native"
            stem, key = (STEM, NATIVE_PREFIX.__add__) if native else formats.foreign_keys(to)
            keys = {name: key(name) for name in weights.shapes}
            write_safetensors(aside, stem, weights, keys, dtype_of, max_shard_size=max_shard_size)
            config = native_config(spec, about) if native else formats.foreign_config(to, spec)
            (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        publish_export(aside, out, about, force=force)
    return report


def find_spec(source: WeightSource, heads: Sequence[str]) -> ModelSpec:
    """Returns the spec of the model to which the weights belong, with the additional heads in `heads`.

    Raises UserError if the model cannot be determined.
    """
    if source.family:
        return formats_of(source.family).model_of(source, heads)
    complaint = UserError(f"{source.describe}: the source does not state to which model the weights belong")
    for formats in FORMATS.all():
        try:
            return formats.model_of(source, heads)
        except UserError as error:
            complaint = error
    raise complaint


def with_merged_adapters(source: WeightSource, alpha: float | None) -> WeightSource:
    """Returns the weights of `source` with its adapters merged; unchanged without adapters or without a known alpha.

    `alpha` None: as the source states. Raises UserError if the adapters have different ranks.
    """
    ranks = {shape[0] for name, shape in source.shapes.items() if name.endswith(MATRICES[0])}
    alpha = alpha or source.adapter_alpha
    if not ranks or alpha is None:
        return source
    if len(ranks) > 1:
        raise UserError(f"{source.describe}: expected adapters of one rank, found {sorted(ranks)}")
    return MergedWeights(source, alpha / ranks.pop())


def with_adapters(weights: WeightSource, source: WeightSource) -> WeightSource:
    """Returns one weight source with all tensors of `weights` and the unmerged adapter matrices of `source`."""
    places: dict[str, tuple[WeightSource, str]] = {name: (weights, name) for name in weights.shapes}
    return JoinedWeights(source.describe, places | {name: (source, name) for name in source.shapes if is_adapter(name)})


def write_dcp(folder: Path, source: WeightSource, dtype_of: Callable[[str], torch.dtype]) -> None:
    """Writes weights as `net.*` into a torch.distributed.checkpoint folder; reads each tensor when it is written.

    `dtype_of` returns the dtype for a tensor name.
    """
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import MetadataIndex

    class ReadingPlanner(DefaultSavePlanner):
        """DCP save planner for tensors on the meta device; reads each tensor from its source when it is written."""

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


def convert_adapter(path: str, out: str | Path, *, lora_alpha: float | None = None, force: bool = False) -> str:
    """Converts the adapters of a source to a PEFT folder.

    Args:
        path: LoRA file of another program, folder with pytorch_lora_weights.safetensors, or SAT checkpoint.
        out: Output folder.
        lora_alpha: Alpha of the adapters; None: as the source states, 1 for SAT.
        force: Replace an earlier result.

    Returns:
        Description of the adapters, for the output of the command.

    Raises:
        UserError: If the source has no adapters.
        ValueError: If the layout of the adapters is not supported.
    """
    layout, stored = read_foreign_adapter(path, lora_alpha)
    if not export_adapter(layout, stored.weights, out, alpha=stored.alpha, dtype="float32", force=force):
        return f"{out} is already complete"
    return f"{len(stored.layers)} layers of a {layout.family} network, rank {stored.rank}, alpha {stored.alpha}"


def read_foreign_adapter(path: str, lora_alpha: float | None) -> tuple[AdapterLayout, StoredAdapter]:
    """Returns (adapter layout of the model family, adapters) of the folder, file or hub name `path`.

    `lora_alpha` None: as the source states. Raises UserError if there are no adapters or their network is unknown.
    """
    root = local_folder(path, file_patterns=("*.safetensors",), field="SOURCE")
    file = find_lora_file(root)
    if file is not None:
        problems: list[UnknownTensorsError] = []
        for formats in FORMATS.all():
            if isinstance(formats, LoadsPipelineAdapters):
                try:
                    stored = read_lora_file(formats.adapter_layout, file, lora_alpha)
                except UnknownTensorsError as error:
                    problems.append(error)
                    continue
                if formats.adapts(stored.layers):
                    return formats.adapter_layout, stored
        closest = "".join(f": {problem}" for problem in sorted(problems, key=attrgetter("count"))[:1])
        raise UserError(f"{file} has adapters for layers of an unknown network{closest}")
    source: Any = open_weights(path, field="SOURCE")
    weights = {name: source.read(name) for name in source.shapes if is_adapter(name)}
    alpha = lora_alpha or source.adapter_alpha
    formats = formats_of(source.family)
    if not weights or alpha is None or not isinstance(formats, LoadsPipelineAdapters) or not formats.adapts([]):
        raise UserError(
            f"{source.describe}: expected {PIPELINE_WEIGHTS}, or a SAT checkpoint with adapters. For the adapters "
            "of a run use `worldsmith export RUN --format adapter`"
        )
    rank = min(len(matrix) for name, matrix in weights.items() if ".lora_A." in name)
    return formats.adapter_layout, StoredAdapter(root, rank, alpha, weights)
