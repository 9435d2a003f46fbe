"""Compares the tensors that every exporter of a model family would write with the library classes that load them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from worldsmith.checkpoint.formats.export_weights import exports_of
from worldsmith.checkpoint.formats.family_formats import ExportFormat, ExportOptions, NamesLibraryShapes, formats_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.sources.checkpoint_weights import AVERAGE, LIVE
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.tree.plain import to_dict
from worldsmith.models.lora import MATRICES
from worldsmith.models.parameter_names import ADAPTER, native_name
from worldsmith.models.real_values import real_values
from worldsmith.planning.simulation.fake_world import fake_tensor_mode
from worldsmith.tools.rehearse.rank_run import Finding, format_names
from worldsmith.training.start_checks import state_shapes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from worldsmith.checkpoint.formats.family_formats import FamilyFormats
    from worldsmith.training.trainer import Trainer

PEFT = "base_model.model."


@dataclass(slots=True)
class Exports:
    """Result of the export checks: problems, and for each export format a description or the reason of a rejection."""

    findings: list[Finding] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    """Export format -> description of the tensors that it would contain."""
    refused: dict[str, str] = field(default_factory=dict)
    """Export format that does not support the model -> reason."""


class ShapesOnly(WeightSource):
    """Weight source that has only the names and shapes of tensors; `read_into` leaves the given tensors unchanged."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self.path, self.describe = Path("the run"), "the run"
        self.shapes, self.average_shapes = (
            {name.removeprefix(start): list(shape) for name, shape in shapes.items() if name.startswith(start)}
            for start in (LIVE, AVERAGE)
        )

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        pass

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        return torch.float32


class TrainedModel(StoredModel):
    """The stored model that a run would save, with the names and shapes of its weights but without values."""

    shapes: ShapesOnly

    @classmethod
    def of(cls, config: Trainer.Config, network: nn.Module) -> TrainedModel:
        """Returns the stored model that a run with this config would save; `network` provides names and shapes."""
        tree, job, average = to_dict(config), config.job, config.model.config.ema
        model = cls(
            folder=Path("the run"),
            spec=config.model,
            defaults=formats_of(config.model.name).defaults_of_run(tree),
            run=f"{job.project}/{job.group}/{job.name}",
            iteration=1,
            weights="ema" if average.enabled else "live",
            tree=tree,
        )
        object.__setattr__(model, "shapes", ShapesOnly(state_shapes(network, average)))
        return model

    @property
    def _source(self) -> WeightSource:  # type: ignore[override]
        return self.shapes

    def open_adapters(self) -> WeightSource:
        return self.shapes

    def load(self, device: str | torch.device = "cpu", **options: Any) -> Any:
        """Builds the model in float32 with merged adapters; under the fake tensor mode its tensors have no memory.

        `device` and `options` have no effect.
        """
        defaults = {} if self.defaults is None else {"defaults": self.defaults}
        with real_values():
            model: Any = self.merged_spec.config.build(device="meta", **defaults)
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.network.modules():  # a network on the meta device cannot be moved to another device
            for name, weight in module._parameters.items():
                if weight is not None:
                    made.setdefault(weight, torch.nn.Parameter(torch.empty(weight.shape), requires_grad=False))
                    module._parameters[name] = made[weight]
        return model


def rehearse_exports(config: Trainer.Config) -> Exports:
    """Compares the tensors that the exports of a run would have with those that diffusers, transformers or PEFT load.

    Every export format of the model family is checked for the full network. Differences and errors of an exporter
    become findings; a format that does not support the model is recorded with the reason.
    """
    network = config.model.config.build(device="meta").network
    model, done = TrainedModel.of(config, network), Exports()
    formats = formats_of(model.spec.name)
    library = cache(lambda: formats.library_network(model.merged_spec.config))
    for name, export in exports_of(model.spec.name).items():
        try:
            export.check(model)
        except ValueError as error:
            done.refused[name] = str(error)
            continue
        try:
            with fake_tensor_mode():
                tensors = export.tensors(model, ExportOptions())
            wanted = expected_tensors(export, formats, model, tensors, library)
        except Exception as error:  # any error would stop the export
            done.findings.append(Finding("export", f"{name}: {error}"))
            continue
        done.findings += compare_tensors(name, tensors, wanted)
        suffix = "" if wanted is None else f", as {wanted.whose} expects them"
        done.written[name] = f"{len(tensors):,} tensors{suffix}"
    return done


@dataclass(frozen=True, slots=True)
class ExpectedTensors:
    """Names and shapes of the tensors that a library class expects when it loads an export; `whose` names the class."""

    whose: str
    shapes: Mapping[str, Sequence[int]]
    spare: Collection[str] = ()
    """Names of tensors that may be missing, because they are tied to another tensor or computed."""


def expected_tensors(
    export: ExportFormat,
    formats: FamilyFormats,
    model: StoredModel,
    tensors: Mapping[str, Tensor],
    library: Callable[[], nn.Module | None],
) -> ExpectedTensors | None:
    """Returns the tensors that the library class which loads an export expects.

    The class is one of diffusers, transformers or PEFT. None if no such class loads the export.

    Args:
        export: Export format.
        formats: Formats of the model family.
        model: Model that would be exported.
        tensors: Tensors that the export would contain, by name.
        library: Returns the network of the library class on the meta device; None if there is no such class.
    """
    if not export.of_library:
        return None
    network = library()
    if network is None:
        return None
    whose = type(network).__name__
    if not export.has_weights:
        return ExpectedTensors(f"PEFT around {whose}", adapted_shapes(network, tensors))
    buffers = {name for name, _ in network.named_buffers()}
    owners: dict[int, str] = {}
    parameters = network.named_parameters(remove_duplicate=False)
    tied = {name for name, parameter in parameters if owners.setdefault(id(parameter), name) != name}
    if isinstance(formats, NamesLibraryShapes):
        shapes = formats.library_shapes(model.merged_spec.config)
    else:
        shapes = {name: value.shape for name, value in network.state_dict().items()}
    return ExpectedTensors(whose, shapes, buffers | tied)


def adapted_shapes(network: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Sequence[int]]:
    """Returns the shapes, by name, of the adapter matrices that PEFT creates in a copy of a library's network.

    `tensors` are the adapter matrices of the export; their names select the layers.
    """
    from peft import LoraConfig, inject_adapter_in_model

    low, network = MATRICES[0], copy.deepcopy(network)
    layers = [name.removesuffix(low).removeprefix(PEFT) for name in tensors if name.endswith(low)]
    rank = next(len(tensor) for name, tensor in tensors.items() if name.endswith(low))
    config: Any = LoraConfig(r=rank, lora_alpha=rank, target_modules=layers)
    inject_adapter_in_model(config, network, adapter_name=ADAPTER, low_cpu_mem_usage=True)
    made = {native_name(name): list(p.shape) for name, p in network.named_parameters() if f".{ADAPTER}." in name}
    return {PEFT + name: shape for name, shape in made.items()}


def compare_tensors(format: str, tensors: Mapping[str, Tensor], expected: ExpectedTensors | None) -> Iterator[Finding]:
    """Yields a finding for missing names, for unexpected names and for different shapes of exported tensors.

    Args:
        format: Name of the export format.
        tensors: Tensors that the export would contain, by name.
        expected: Tensors that the loading library expects; None: no check.
    """
    if expected is None:
        return
    missing = [name for name in expected.shapes if name not in tensors and name not in expected.spare]
    unknown = [name for name in tensors if name not in expected.shapes]
    if missing:
        yield Finding(
            "export", f"{format}: missing in the export: {format_names(missing)}, which {expected.whose} expects"
        )
    if unknown:
        yield Finding("export", f"{format}: unexpected in {expected.whose}: {format_names(unknown)}")
    other = [
        f"{name} ({list(tensor.shape)}, {expected.whose} has {list(expected.shapes[name])})"
        for name, tensor in tensors.items()
        if name in expected.shapes and list(tensor.shape) != list(expected.shapes[name])
    ]
    if other:
        yield Finding("export", f"{format}: different shapes: {format_names(other)}")
