"""What a run started from: stored weights, and initial values for what those lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.registry import formats_of
from worldsmith.checkpoint.sources.first_weights import start_in
from worldsmith.checkpoint.sources.weight_source import WeightSource, open_weights
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.world import World
from worldsmith.models.fill import fill
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_name
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class StartWeights(WeightSource):
    """The first weights of a model, tensor by tensor: those of `source` where it has them, else by name and seed.

    Weights whose name contains one of `keys_to_skip` are not taken from the source. Adapters are no part of it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        seed: int,
        source: WeightSource | None = None,
        keys_to_skip: Sequence[str] = (),
        *,
        average_as_live: bool = False,
    ) -> None:
        self.family = spec.name
        self.model: Any = resolve(spec).config.build(device="meta")
        parameters = dict(self.model.network.named_parameters())
        self._places = {native_name(place): place for place in parameters if not is_adapter(native_name(place))}
        self.seed, self.source, self.average_as_live = seed, source, average_as_live
        self.shapes = {name: list(parameters[place].shape) for name, place in self._places.items()}
        self.stored = {
            name
            for name in self.shapes
            if source is not None and name in source.shapes and not any(key in f"net.{name}" for key in keys_to_skip)
        }
        self.path = source.path if source is not None else Path()
        self.describe = source.describe if source is not None else f"initial weights of seed {seed}"
        self.settings, self.average_shapes, self.copies, self.unknown = {}, {}, {}, []

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        if self.source is not None:
            stored = {name: tensor for name, tensor in tensors.items() if name in self.stored}
            self.source.read_into(stored, average=self.average_as_live, no_dist=no_dist)
        for name, tensor in tensors.items():
            if name not in self.stored:
                self._initialise(name, tensor)

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        import torch

        if self.source is None or name not in self.stored:
            return torch.float32
        return self.source.dtype(name, average=self.average_as_live)

    def _initialise(self, name: str, target: Tensor) -> None:
        """Only the module that owns the parameter gets memory, and only for as long as it takes."""
        place = self._places[name]
        owner = self.model.network.get_submodule(place.rpartition(".")[0])
        owner.to_empty(device="cpu", recurse=False)
        self.model.init_weights(self.seed, [name])
        fill(target, self.model.network.get_parameter(place).detach())
        owner.to_empty(device="meta", recurse=False)


def start_of_run(tree: Mapping[str, Any], *, base: str | None = None, world: World | None = None) -> StartWeights:
    """The start of the run with this config, as plain data. `base` is where the weights of its load_path are now."""
    section = tree["checkpoint"]
    spec = formats_of(tree["model"]["name"]).network_of_run(tree["model"])
    spec.config = spec.config.as_used()
    start = start_in(tree, spec.config)
    source = None
    if start is not None:
        field = start.field if base is None else "base"
        source = open_weights(base or start.path, field=field, family=spec.name, world=world)
    return StartWeights(
        spec,
        tree["trainer"]["seed"],
        source,
        section.get("keys_to_skip_loading") or (),
        average_as_live=section.get("load_ema_to_reg", False),
    )
