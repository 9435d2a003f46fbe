"""Simulates one rank of a rehearsal: build, one step, the plan of a save, and a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from worldsmith.checkpoint.dcp.dcp_folder import planner_of
from worldsmith.checkpoint.dcp.tensor_reader import TensorReader
from worldsmith.models.local_part import local_part
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.real_values import real_values
from worldsmith.planning.simulation.fake_world import fake_tensor_mode
from worldsmith.planning.simulation.tracked_run import TrackedRun, simulated_run
from worldsmith.planning.simulation.traffic import Sent
from worldsmith.training.trainer import Trainer

PACKS = 2
"""Max simulated packs of a step: with gradient accumulation, only the first and the last are simulated."""
FILLS = (0.06, 0.03, 0.09)
"""Pack length per data-parallel rank, as fractions of the longest pack: different lengths reveal code that assumes
equal ones."""
STEP_DONE = 1
SHOWN = 3
"""Max number of names that a message lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem that the rehearsal found and that would occur in the run."""

    part: str
    """Stage of the rehearsal: "degrees" (computation of the parallelism degrees), "first step", "save", "resume" or
    "export"."""
    message: str

    def __str__(self) -> str:
        return f"{self.part}: {self.message}"


@dataclass(frozen=True, slots=True)
class RankWeight:
    """Shape, dtype and sharding of a network parameter as one simulated rank stores it."""

    shape: Sequence[int]
    """Shape of the full tensor."""
    dtype: torch.dtype
    trained: bool
    whole: bool
    """Whether the rank stores the full tensor although the model does not require it (see `Model.quantized_layers`)."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """Record of one simulated rank: its weights, the collectives of the first step, and its save plan."""

    rank: int
    data_rank: int
    weights: Mapping[str, RankWeight] = field(default_factory=dict)
    """Weights by internal parameter name."""
    trace: Sequence[Sent] = ()
    """Collectives of the first step, in order."""
    plans: Mapping[str, SavePlan] = field(default_factory=dict)
    """Save plan of the rank, by checkpoint part."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Content of the small text files of the checkpoint, by file name."""
    error: str = ""
    """Error that ended the simulation of the rank; "" without an error."""


class RankSimulator:
    """Simulator of the ranks of a run; the fake tensor mode and the frozen components are shared by all ranks."""

    def __init__(self, config: Trainer.Config, folder: Path) -> None:
        """Prepares the simulation; `folder` is a temporary run folder for checkpoint layouts without tensors."""
        count = min(config.trainer.grad_accum_iter, PACKS)
        self.config = replace(config, trainer=replace(config.trainer, grad_accum_iter=count))
        self.folder, self.mode = folder, fake_tensor_mode()
        self.frozen: dict[str, Any] = {}
        self.encoded: dict[Any, torch.Tensor] = {}

    @contextmanager
    def rank(self, rank: int, ranks: int) -> Iterator[TrackedRun]:
        """Context manager: yields the built run of the simulated rank `rank` of `ranks`, with a `LayoutKeeper`."""
        with simulated_run(self.config, [], ranks=ranks, rank=rank, only_traffic=True, mode=self.mode) as run:
            run.tracker.name_modules(run.model.network, each=True)
            state: Any = run.state
            state.run_folder, state.loader = self.folder, no_loader(run.world.data_size)
            state.checkpointer = LayoutKeeper(run.world, self.folder / "checkpoints")
            # Frozen weights that a checkpoint lacks are compared bit by bit; simulated tensors have no bits.
            state.weights.frozen, state.weights.load_initial = dict, lambda **_: None
            yield run

    def step(self, run: TrackedRun) -> None:
        """Runs the first step of a simulated rank on dummy data; all simulated ranks share the frozen components."""
        model = vars(run.model)
        own = {*model, "encode"}
        model.update(self.frozen)
        if hasattr(run.model, "encode"):
            encode: Any = run.model.encode
            model["encode"] = lambda video: self.once(encode, video)
        run.task.dummy_data.assume_cached()
        run.batches = make_batches(run)
        run.tracker.traffic.restart()
        run.step()
        self.frozen |= {name: value for name, value in model.items() if name not in own}

    def once(self, encode: Callable[[torch.Tensor], torch.Tensor], video: torch.Tensor) -> torch.Tensor:
        """Returns the result of `encode` for a video; `encode` is called only once for videos of the same shape.

        For a later video of that shape, a copy of the first result is returned.
        """
        if video.shape not in self.encoded:
            self.encoded[video.shape] = encode(video)
        return self.encoded[video.shape].clone()


def record_rank(simulator: RankSimulator, rank: int, ranks: int) -> RankRecord:
    """Simulates the first step of a rank and the planning of a checkpoint save after it.

    Args:
        simulator: Simulator of the run.
        rank: Index of the rank.
        ranks: World size.

    Returns:
        The record. An exception ends the simulation and is stored in `error`.
    """
    record = RankRecord(rank, rank // simulator.config.model.config.parallelism.context_parallel_shard_degree)
    try:
        with simulator.rank(rank, ranks) as run:
            record = replace(record, data_rank=run.world.data_rank, weights=weights_of(run))
            simulator.step(run)
            record = replace(record, trace=list(run.tracker.traffic.trace))
            with real_values():
                run.state.save()
                keeper: Any = run.state.checkpointer
                plans = {part: planner_of(state).create_local_plan() for part, state in keeper.parts.items()}
            return replace(record, plans=plans, texts=keeper.texts)
    except Exception as error:  # any error would stop the run
        return replace(record, error=f"{type(error).__name__}: {error}")


def resume_rank(simulator: RankSimulator, rank: int, ranks: int, checkpoint: Path) -> list[str]:
    """Resumes a simulated rank from a checkpoint without tensors, with the code of the run, and returns the problems.

    Args:
        simulator: Simulator of the run.
        rank: Index of the rank.
        ranks: World size.
        checkpoint: Checkpoint folder from `write_layout`.
    """
    with simulator.rank(rank, ranks) as run:
        keeper: Any = run.state.checkpointer
        try:
            with real_values():
                run.state.restore(checkpoint)
        except Exception as error:
            keeper.complaints.append(str(error))
        return list(dict.fromkeys(keeper.complaints))


def make_batches(run: TrackedRun) -> list[Any]:
    """Returns the packed batches of dummy samples for one step, one per gradient accumulation step.

    The number of tokens of a batch depends on the data-parallel rank.
    """
    with real_values():
        samples = run.task.dummy_data.make_batch(fill=FILLS[run.world.data_rank % len(FILLS)]).samples
    return [samples] * run.config.trainer.grad_accum_iter


def weights_of(run: TrackedRun) -> dict[str, RankWeight]:
    """Returns the parameters of the network as the simulated rank stores them, by internal parameter name."""
    trained, held = {id(parameter) for parameter in run.state.parameters}, run.model.quantized_layers
    return {
        name: RankWeight(
            list(parameter.shape),
            parameter.dtype,
            trained=id(parameter) in trained,
            whole=name not in held and not is_sharded(parameter),
        )
        for name, parameter in native_parameters(run.model.network).items()
    }


def is_sharded(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is a sharded DTensor."""
    return isinstance(tensor, DTensor) and any(placement.is_shard() for placement in tensor.placements)


class LayoutKeeper:
    """Replacement of `Checkpointer` for simulated ranks, which neither writes nor reads tensor data.

    `save` stores the state in `parts` and `texts`. `load_part` compares names, shapes and dtypes with a checkpoint, and
    appends the differences to `complaints` as messages.
    """

    def __init__(self, world: Any, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.parts: Mapping[str, Mapping[str, Any]] = {}
        self.texts: Mapping[str, str] = {}
        self.complaints: list[str] = []

    def save(
        self, iteration: int, parts: Mapping[str, Mapping[str, Any]], *, texts: Mapping[str, str], **others: Any
    ) -> Path:
        """Stores the state of a save in `parts` and `texts`, and writes no files; returns `folder`.

        Args:
            iteration: Training step.
            parts: State by checkpoint part.
            texts: Content of the small text files by name.
            others: Ignored.
        """
        self.parts, self.texts = parts, texts
        return self.folder

    def load_part(self, checkpoint: Path, part: str, state: dict[str, Any]) -> None:
        """Compares names, shapes and dtypes of `state` with a checkpoint part; appends differences to `complaints`.

        Raises ValueError if elements of a tensor would not be loaded.
        """
        metadata = TensorReader(checkpoint / part).read_metadata()
        stored: Mapping[str, Any] = metadata.state_dict_metadata
        wrong = [
            f"{name}: expected {format_tensor(tensor.shape, tensor.dtype)}, found "
            f"{format_tensor(stored[name].size, stored[name].properties.dtype)}"
            for name, tensor in state.items()
            if name in stored
            and (tuple(stored[name].size), stored[name].properties.dtype) != (tuple(tensor.shape), tensor.dtype)
        ]
        missing = [name for name in state if name not in stored]
        if wrong:
            self.complaints.append(
                f"{part}: {len(wrong)} of {len(state)} tensors have another shape or dtype: {format_names(wrong)}"
            )
        if missing:
            self.complaints.append(f"{part}: the checkpoint lacks {format_names(missing)}")
        if not wrong and not missing:
            planner = DefaultLoadPlanner()
            planner.set_up_planner(state, metadata, is_coordinator=False)
            plan = planner.create_local_plan()
            require_filled(state, plan.items)


def require_filled(state: Mapping[str, Any], items: Sequence[Any]) -> None:
    """Raises ValueError if torch.distributed.checkpoint would not load all elements of a tensor in `state`.

    `items` are the read items of the load plan for `state`.
    """
    read: dict[str, int] = dict.fromkeys(state, 0)
    for item in items:
        read[item.dest_index.fqn] += math.prod(item.lengths)
    for name, tensor in state.items():
        own = local_part(tensor).numel()
        if read[name] != own:
            raise ValueError(f"{name}: {read[name]:,} of this rank's {own:,} elements would be read")


def no_loader(world_size: int) -> SimpleNamespace:
    """Returns a replacement of the data loader for the simulation, which needs no dataset."""
    methods = {"state_dict": dict, "changes_since": lambda _: [], "load_states": lambda _: None}
    return SimpleNamespace(world_size=world_size, **methods)


def write_layout(folder: Path, metadata: Mapping[str, Any], texts: Mapping[str, str], shares: int) -> Path:
    """Writes a checkpoint of the first step without tensor data, and returns its folder.

    Args:
        folder: The run folder; the checkpoint is written into its folder `checkpoints`.
        metadata: Content of the file `.metadata` by checkpoint part.
        texts: Content of the small text files by name.
        shares: Number of data-parallel ranks, each with a data loader state.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    checkpoint = folder / f"checkpoints/iter_{STEP_DONE:09d}"
    for part, described in metadata.items():
        writer = FileSystemWriter(checkpoint / part, sync_files=False)
        writer.set_up_storage_writer(True)
        (checkpoint / part).mkdir(parents=True, exist_ok=True)
        writer.finish(described, [[]])
    (checkpoint / "dataloader").mkdir()
    for share in range(shares):
        (checkpoint / f"dataloader/rank_{share}.json").write_text(json.dumps({}), encoding="utf-8")
    for name, text in texts.items():
        (checkpoint / name).write_text(text, encoding="utf-8")
    return checkpoint


def format_tensor(shape: Sequence[int], dtype: Any) -> str:
    """Returns shape and dtype of a tensor as text, such as "[4, 8] bfloat16"."""
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def format_names(names: Sequence[str]) -> str:
    """Returns the first names, and the number of the other ones, as text, such as "a, b, c and 2 more"."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
