"""Load and memory of processors and accelerators, of every process of the run."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.ranges import Count
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.monitor.sinks import Sinks
    from worldsmith.training.step import Step

GREATEST = ("cpu_percent", "ram_bytes", "gpu_percent", "gpu_bytes")


class DeviceMonitor(Callback):
    """Reads every process's devices now and then: `devices.jsonl` has one line a reading, with an entry a process.

    `cpu_percent` (100 is one busy core, loader workers not counted) and `ram_bytes` are of the process,
    `ram_free_bytes` of its machine; `gpu_bytes` is held by tensors, `gpu_percent` how busy the GPU is, where its driver
    can be asked (package pynvml). The greatest of each over all processes is a figure of the run, `devices`.
    """

    class Config(Callback.Config):
        every: Count = 10
        """Steps between two readings."""

    config: Config
    file: Sinks | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        import psutil

        self.process, self.last = psutil.Process(), dict[str, float]()
        self.process.cpu_percent()  # the first call begins the measurement
        if trainer.world.is_main:
            self.file = self.records("devices.jsonl", trainer)

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if (step.index + 1) % self.config.every:
            return
        ranks = trainer.world.gather(self.read(trainer.world.device))
        self.last = {name: max(found) for name in GREATEST if (found := [rank[name] for rank in ranks if name in rank])}
        if self.file is not None:
            self.file.write(step.index + 1, {"processes": ranks})

    def figures(self, trainer: TrainingRun, step: Step) -> Mapping[str, Any]:
        last, self.last = self.last, {}
        return {"devices": last} if last else {}

    def read(self, device: str) -> dict[str, Any]:
        """What this process uses at this moment."""
        import psutil
        import torch

        found = {
            "host": socket.gethostname(),
            "cpu_percent": self.process.cpu_percent(),
            "ram_bytes": self.process.memory_info().rss,
            "ram_free_bytes": psutil.virtual_memory().available,
        }
        if device.startswith("cuda"):
            found["gpu_bytes"] = torch.cuda.memory_allocated(device)
            found["gpu_reserved_bytes"] = torch.cuda.memory_reserved(device)
            with suppress(ModuleNotFoundError, RuntimeError):
                found["gpu_percent"] = torch.cuda.utilization(device)
        return found

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
