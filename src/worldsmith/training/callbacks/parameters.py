"""`NormMonitor` and `ParamCount`: norms and sizes of the parameters, by part of the network."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.ranges import Count
from worldsmith.models.local_part import local_part
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.monitor.sinks import Sinks
    from worldsmith.training.step import StepResult


class NormMonitor(Callback):
    """Measures L2 norms of what is trained: `norms.jsonl` has one line a measurement, by part of the network.

    `weight` is that before the step, `gradient` that before clipping, `update` the norm of what the step changed. Over
    the whole network they are a figure of the run, `norms`. Sharded weights count once, whatever the processes.
    """

    class Config(Callback.Config):
        every: Count = 100
        """Steps between two measurements."""
        updates: bool = False
        """Whether updates are measured: keeps a copy of the trained weights during a measured step."""

    config: Config
    file: Sinks | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        from worldsmith.models.parameter_names import native_parameters

        trained = {name: p for name, p in native_parameters(trainer.model.network).items() if p.requires_grad}
        self.parts = [module_path(name) for name in trained]
        self.parameters = list(trained.values())
        self.found: dict[str, dict[str, float]] = {}
        self.before: list[Tensor] = []
        if trainer.world.is_main:
            self.file = self.records("norms.jsonl", trainer)

    def on_before_optimizer_step(self, trainer: TrainingRun, step: StepResult) -> None:
        if (step.inputs.index + 1) % self.config.every:
            return
        weights = [parameter.detach() for parameter in self.parameters]
        gradient = self.norms([parameter.grad for parameter in self.parameters])
        total = total_norm(gradient)
        if step.gradient is not None and 0 < total < step.gradient.norm < math.inf:  # it is clipped already
            gradient = {part: norm * step.gradient.norm / total for part, norm in gradient.items()}
        self.found = {"weight": self.norms(weights), "gradient": gradient}
        if self.config.updates:
            self.before = [weight.clone() for weight in weights]

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if trainer.iteration % self.config.every or not self.found:
            return
        if self.before:
            changes = [after.detach() - before for after, before in zip(self.parameters, self.before, strict=True)]
            self.found["update"], self.before = self.norms(changes), []
        parts = {part: {kind: norms[part] for kind, norms in self.found.items()} for part in self.found["weight"]}
        if self.file is not None:
            self.file.write(trainer.iteration, {"parts": parts})

    def figures(self, trainer: TrainingRun, step: StepResult) -> Mapping[str, Any]:
        found, self.found = self.found, {}
        return {"norms": {kind: total_norm(norms) for kind, norms in found.items()}} if found else {}

    def norms(self, tensors: Sequence[Tensor | None]) -> dict[str, float]:
        """The norm of each part, over all ranks."""
        squares: dict[str, float] = defaultdict(float)
        for part, square in zip(self.parts, square_sums(tensors), strict=True):
            squares[part] += square
        return {part: square**0.5 for part, square in squares.items()}

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def total_norm(norms: Mapping[str, float]) -> float:
    """Norm over all parts."""
    return math.hypot(*norms.values())


def square_sums(tensors: Sequence[Tensor | None]) -> list[float]:
    """Sum of squares of each tensor over all its shards; 0 for None. All tensors of a mesh are reduced together."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate

    kinds: dict[Any, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            layout = tuple(p.is_shard() for p in tensor.placements) if isinstance(tensor, DTensor) else None
            kinds[(tensor.device_mesh, layout) if isinstance(tensor, DTensor) else None].append(place)
    found = [0.0] * len(tensors)
    for kind, places in kinds.items():
        own = [local_part(tensors[place]) for place in places]
        sums = torch.stack([norm.double().square() for norm in torch._foreach_norm(own)])
        if kind is not None:
            mesh, layout = kind
            sums = DTensor.from_local(sums, mesh, [Partial() if cut else Replicate() for cut in layout]).full_tensor()
        for place, square in zip(places, sums.tolist(), strict=True):
            found[place] = square
    return found


class ParamCount(Callback):
    """Writes `parameters.json` at the start: numbers in all parameters, in the trained ones, and both by part."""

    class Config(Callback.Config):
        """Has no settings."""

    def on_run_start(self, trainer: TrainingRun) -> None:
        from worldsmith.models.parameter_names import native_parameters

        total, trained = Counter[str](), Counter[str]()
        for name, parameter in native_parameters(trainer.model.network).items():
            total[module_path(name)] += parameter.numel()
            trained[module_path(name)] += parameter.numel() * parameter.requires_grad
        if trainer.world.is_main:
            parts = {part: {"parameters": total[part], "trained": trained[part]} for part in total}
            content = {"parameters": total.total(), "trained": trained.total(), "parts": parts}
            self.write_json("parameters.json", content)


def module_path(name: str) -> str:
    """The part of a network to which a parameter belongs: its path up to the first number, else its module.

    `model.layers.3.mlp.up_proj.weight` → `model.layers.3`; `vae2llm.bias` → `vae2llm`.
    """
    words = name.split(".")
    number = next((place for place, word in enumerate(words) if word.isdigit()), None)
    return ".".join(words[: len(words) - 1 if number is None else number + 1])
