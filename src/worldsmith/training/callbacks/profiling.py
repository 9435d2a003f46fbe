"""`DeviceMonitor` and `Profiler`: load of CPUs and GPUs, and traces of single steps."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.monitor.sinks import Sinks
    from worldsmith.training.step import StepInputs, StepResult

logger = logging.getLogger(__name__)

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

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if trainer.iteration % self.config.every:
            return
        ranks = trainer.world.gather(self.read(trainer.world.device))
        self.last = {name: max(found) for name in GREATEST if (found := [rank[name] for rank in ranks if name in rank])}
        if self.file is not None:
            self.file.write(trainer.iteration, {"processes": ranks})

    def figures(self, trainer: TrainingRun, step: StepResult) -> Mapping[str, Any]:
        last, self.last = self.last, {}
        return {"devices": last} if last else {}

    def read(self, device: str) -> dict[str, Any]:
        """Reads the current CPU, RAM and GPU usage of this process."""
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


class Profiler(Callback):
    """Records windows of steps with torch.profiler: `step_<first>_rank_<n>.json`, which https://ui.perfetto.dev opens.

    A recorded step is slower than others.
    """

    class Config(Callback.Config):
        first_step: Count = 10
        """The first step that is recorded, counted from 1 over the whole run."""
        steps: Count = 2
        """How many steps a window has."""
        every: NotNegative = 0
        """Steps between the beginnings of two windows. 0: there is one."""
        ranks: list[NotNegative] = field(default_factory=lambda: [0])
        """The processes that record."""
        shapes: bool = False
        """Whether the shapes of tensors are recorded."""
        memory: bool = False
        """Whether allocations are recorded."""

    config: Config
    active: Any = None

    def on_training_step_start(self, trainer: TrainingRun, inputs: StepInputs) -> None:
        if trainer.world.rank not in self.config.ranks or not self.begins(inputs.index + 1):
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
        self.first, self.rank = inputs.index + 1, trainer.world.rank
        self.active = profile(activities=kinds, record_shapes=self.config.shapes, profile_memory=self.config.memory)
        self.active.start()

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if self.active is not None and trainer.iteration + 1 - self.first >= self.config.steps:
            self.write()

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.active is not None:
            self.write()

    def begins(self, step: int) -> bool:
        """Whether a window of recorded steps starts with this step."""
        since, every = step - self.config.first_step, self.config.every
        return self.active is None and (since == 0 or (every > 0 and since > 0 and since % every == 0))

    def write(self) -> None:
        active, self.active = self.active, None
        path = self.folder / f"step_{self.first:09d}_rank_{self.rank}.json"
        try:
            active.stop()
            self.folder.mkdir(exist_ok=True)
            active.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            logger.warning("%s cannot be written, the run goes on: %s", path, error)
        else:
            logger.info("profile of the steps from %d on: %s", self.first, path)
