"""How many parameters the network has, by part."""

from __future__ import annotations

import json
import logging
from collections import Counter

from worldsmith.training.callbacks.base import Callback, TrainingRun

logger = logging.getLogger(__name__)


class ParamCount(Callback):
    """Writes `parameters.json` at the start: numbers in all parameters, in the trained ones, and both by part."""

    class Config(Callback.Config):
        """Has no settings."""

    def on_run_start(self, trainer: TrainingRun) -> None:
        from worldsmith.models.parameter_names import native_parameters

        total, trained = Counter[str](), Counter[str]()
        for name, parameter in native_parameters(trainer.model.network).items():
            total[part_of(name)] += parameter.numel()
            trained[part_of(name)] += parameter.numel() * parameter.requires_grad
        if trainer.world.is_main:
            parts = {part: {"parameters": total[part], "trained": trained[part]} for part in total}
            content = {"parameters": total.total(), "trained": trained.total(), "parts": parts}
            try:
                (self.folder / "parameters.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            except OSError as error:
                logger.warning("%s cannot be written, the run goes on: %s", self.folder / "parameters.json", error)


def part_of(name: str) -> str:
    """The part of a network that a parameter belongs to: its path up to the first number, or the module it is in.

    `model.layers.3.mlp.up_proj.weight` → `model.layers.3`; `vae2llm.bias` → `vae2llm`.
    """
    words = name.split(".")
    number = next((place for place, word in enumerate(words) if word.isdigit()), None)
    return ".".join(words[: len(words) - 1 if number is None else number + 1])
