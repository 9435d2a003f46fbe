"""A model family of its own: a linear map of numbers, from the rows of a text file to a mean squared error.

Everything that a family must say is in this file; nothing in the package knows of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import Configurable, recipe
from worldsmith.config.declare.class_tags import trust
from worldsmith.config.declare.ranges import Count
from worldsmith.config.sections import JobConfig
from worldsmith.data.assumed_batches import DummyBatch
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.quarantine import Quarantine, Rejection
from worldsmith.data.stream.sample_maker import SampleMaker, SampleResult, StreamDataset
from worldsmith.models.ema import PowerEMA
from worldsmith.models.fill_parameters import fill
from worldsmith.models.model import Model
from worldsmith.models.network_parts import NetworkParts
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec
from worldsmith.models.weights.shapes import Shapes, repeat_shapes
from worldsmith.objectives.objective import BatchLoss, Objective
from worldsmith.tasks.registry import TASKS
from worldsmith.tasks.task import DummyData, Task
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer

if TYPE_CHECKING:
    from torch import Tensor, nn

# 1. The model: a network, its parts, and first weights by seed and name.


class ToyModel(Model):
    """Linear layers in a row."""

    class Config(Model.Config):
        family: ClassVar[str] = "toy"
        task: ClassVar[str] = "vfm"
        layer_lists: ClassVar[Sequence[str]] = ("layers",)

        width: Count = 4
        """Numbers in and out."""
        depth: Count = 2
        """Layers."""

        def shapes(self) -> Shapes:
            return repeat_shapes("layers", self.depth, {"weight": (self.width, self.width), "bias": (self.width,)})

    config: Config

    def make_network(self) -> nn.Module:
        from torch import nn

        class Network(nn.Module):
            def __init__(self, width: int, depth: int) -> None:
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

            def forward(self, x: Tensor) -> Tensor:
                for layer in self.layers:
                    x = layer(x)
                return x

        return Network(self.config.width, self.config.depth)

    def parts(self) -> NetworkParts:
        return NetworkParts(layers=list(self.network.layers))  # type: ignore[arg-type]

    def init_weights(self, seed: int, names: Collection[str] | None = None) -> None:
        import torch

        parameters = native_parameters(self.network)
        for name in parameters if names is None else names:
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            stream = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
            spread = 0.0 if name.endswith(("bias", "lora_B.weight")) else 0.5
            with torch.no_grad():
                fill(parameters[name], spread * torch.randn(parameters[name].shape, generator=stream))


# 2. The data: a data set, a maker of its samples, and a loader that joins the two.


@dataclass(frozen=True)
class Row:
    """Numbers, and what is to come out for them."""

    key: str
    position: int
    numbers: list[float]
    target: list[float]
    num_tokens: int


class Rows(Configurable, StreamDataset):
    """Lines of numbers in a file: the first half is what goes in, the second what is to come out."""

    class Config(Configurable.Config):
        path: str = ""
        """The file."""

        def check_files(self) -> None:
            """Raises DataError when the file cannot be read."""
            self.build()

    def __init__(self, config: Config) -> None:
        self.name, self.rejections = config.path, list[Rejection]()
        try:
            self.lines = Path(config.path).read_text().splitlines()
        except OSError as error:
            raise DataError(f"{config.path}: {error.strerror}") from None
        self.num_records = len(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def listing(self) -> Iterator[tuple[str, str]]:
        for index, line in enumerate(self.lines):
            yield f"row_{index}", line


class RowMaker(SampleMaker[Row]):
    """Reads a line."""

    def make(self, position: int) -> SampleResult[Row]:
        index = self.index(position)
        try:
            numbers = [float(word) for word in self.dataset.lines[index].split()]
        except ValueError as error:
            raise SampleError("no_number", str(error)) from None
        half = len(numbers) // 2
        return SampleResult(Row(f"row_{index}", position, numbers[:half], numbers[half:], num_tokens=half))

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        index = self.index(position)
        return Rejection(f"row_{index}", reason, detail, self.dataset.name, index + 1)


class RowLoader(PackingDataLoader):
    """Packs of rows."""

    class Config(PackingDataLoader.Config):
        dataset: Rows.Config = field(default_factory=Rows.Config)
        """The data set."""

    def __init__(
        self, config: Config, *, quarantine: Quarantine | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        maker = RowMaker(config.dataset.build(), config)
        super().__init__(config, maker=maker, quarantine=quarantine, rank=rank, world_size=world_size)


# 3. The objective, and the task that joins the three.


class SquaredError(Objective):
    """Squared errors against noisy targets."""

    class Config(Objective.Config):
        noise: float = 0.1
        """Standard deviation of what is added to the targets, drawn anew for each position in the stream."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def losses(self, answers: Tensor, rows: Sequence[Row], *, seed: int) -> Tensor:
        """Of each row: the mean over its numbers, [rows]."""
        import torch

        targets = [torch.tensor(row.target) + self.config.noise * row_noise(row, seed) for row in rows]
        return (answers - torch.stack(targets).to(answers.device)).square().mean(dim=1)


def row_noise(row: Row, seed: int) -> Tensor:
    import torch

    return torch.randn(len(row.target), generator=torch.Generator().manual_seed(1_000_003 * seed + row.position))


class DummyRows(DummyData):
    """Dummy rows, as long as the network accepts."""

    def make_batch(self, *, fill: float = 1.0, encoded: bool = True) -> DummyBatch:
        count, width = max(1, round(fill * self.task.data.max_samples_per_batch)), self.task.model.config.width
        rows = [Row(f"assumed_{n}", n, [0.0] * width, [0.0] * width, num_tokens=width) for n in range(count)]
        return DummyBatch(rows, f"{count} rows")


class ToyTask(Task):
    """A step's loss is the mean over all of its rows."""

    objective_class = SquaredError
    loader_class = RowLoader
    dummy_data_class = DummyRows

    def loss(self, batch: Sequence[Row], *, seed: int) -> BatchLoss:
        import torch

        dtype = getattr(torch, self.model.config.precision)
        numbers = torch.tensor([row.numbers for row in batch], device=self.model.device, dtype=dtype)
        losses = self.objective.losses(self.model.network(numbers).float(), batch, seed=seed)
        return BatchLoss(sum=losses.sum(), samples=len(batch), tokens=sum(row.num_tokens for row in batch))


# 4. A recipe, and the family's name. A package has an entry point in the place of the two calls.

trust("toy_family")
TASKS.register("toy", ToyTask)


@recipe("toy")
def toy() -> Trainer.Config:
    """Eight steps of four rows."""
    return Trainer.Config(
        job=JobConfig(experiment="toy", project="tests", group="toy", name="toy"),
        model=ModelSpec(
            name="toy", config=ToyModel.Config(precision="float32", ema=PowerEMA.Config(enabled=True, rate=0.2))
        ),
        objective=SquaredError.Config(),
        optimizer=AdamW.Config(lr=3e-2, weight_decay=0.01),
        scheduler=LambdaCosine.Config(cycle_lengths=[8], warm_up_steps=[2]),
        trainer=LoopConfig(
            max_iter=8,
            logging_iter=1,
            grad_accum_iter=2,
            cpu_threads=1,
            callbacks={"grad_clip": GradClip.Config(clip_norm=1.0), "metrics": Metrics.Config(tensorboard=False)},
        ),
        checkpoint=Checkpointer.Config(init="scratch", save_iter=4),
        dataloader_train=RowLoader.Config(
            dataset=Rows.Config(path="${oc.env:TOY_ROWS}"), max_samples_per_batch=2, num_workers=0
        ),
    )
