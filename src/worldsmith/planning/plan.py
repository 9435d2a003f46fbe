"""`make_plan`: plans a run by simulating a step; `quick_plan`: computes sizes from the config.

Torch is imported only when a step is simulated, when a model family needs a network to determine its parameter shapes,
or when a setting of the optimizer can change its state (`training.optimizer:parameter_state`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import UserError
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.distributed.gpus import GPUS, Gpu, holding
from worldsmith.models.weights.weight_table import Table, counts, table_of, weight_table
from worldsmith.planning.assumptions import BESIDE_STEPS, assumptions, encoded_first
from worldsmith.planning.estimate_memory import MemoryVerdict, Parts, disk, host_memory, memory_verdict, plan_encoding
from worldsmith.planning.estimate_time import EFFICIENCIES, RunTime, StepSeconds, run_time, step_seconds
from worldsmith.planning.work import BESIDE, StepWork
from worldsmith.training.preflight import build_optimizer, kept_checkpoints
from worldsmith.training.run_config import why_not_encodable
from worldsmith.training.state_bytes import checkpoint_bytes, state_bytes

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class QuickPlan:
    """Parameter counts of the network and exact sizes in bytes that need no simulation."""

    parameters: int
    trained: int
    states: Mapping[str, int]
    """Bytes of the training state by category, on the rank with the most; exact, except for gradients that a step does
    not produce."""
    checkpoint_bytes: int
    """Bytes of one checkpoint on disk: exact for tensors, estimated for file overhead."""
    checkpoint_tensors: int = 0
    """Exact size of the tensors in one checkpoint, in bytes."""
    kept_checkpoints: int = 1
    """Max number of checkpoints on disk at the same time."""


def quick_plan(config: Trainer.Config, ranks: int) -> QuickPlan:
    """Computes parameter counts and exact sizes of a run from its config, without a simulation.

    Args:
        config: Config with resolved references.
        ranks: Number of ranks.

    Raises:
        ValueError: If the parallelism degrees do not fit `ranks`.
    """
    degrees, table = plan_degrees(config.model.config.parallelism, ranks), run_table(config)
    states, checkpoint = state_bytes(table, config, degrees), checkpoint_bytes(table, config, degrees)
    parts = {"parameters" if name == "weights" else name: count for name, count in states.parts.items()}
    kept = kept_checkpoints(config)
    return QuickPlan(*counts(table), parts, checkpoint.files, checkpoint.tensors, kept)


def least_ranks(config: Trainer.Config) -> int:
    """Returns the minimum number of ranks that the parallelism degrees of `config` allow."""
    parallelism = config.model.config.parallelism
    shard, replicate = parallelism.data_parallel_shard_degree, parallelism.data_parallel_replicate_degree
    return max(shard, 1) * max(replicate, 1) * parallelism.context_parallel_shard_degree


def run_table(config: Trainer.Config) -> Table:
    """Returns shape and training state of each parameter of a run by internal parameter name.

    The network is built, on the meta device, only if its model family cannot derive the shapes from the config.
    """
    table = weight_table(config.model.config, config.optimizer.keys_to_select)
    if table is not None:
        return table
    model: Model = config.model.config.build(device="meta")
    build_optimizer(config, model.network)
    return table_of(model)


@dataclass(frozen=True, slots=True)
class Plan:
    """Predicted GPU memory, host RAM, disk space and time of a run."""

    name: str
    family: str
    degrees: Degrees
    gpu: Gpu
    quick: QuickPlan
    work: StepWork
    """Simulated work of rank 0; other ranks differ only in their data."""
    data: str
    """Description of the batches that were simulated."""
    memory: MemoryVerdict
    host: Parts
    disk: Parts
    step: StepSeconds | None
    time: RunTime | None
    untimed: str
    """Reason why the time of the run is not estimated; "": it is estimated."""
    assumptions: Mapping[str, str]
    """Assumptions of the plan as texts, by topic such as "margins"."""

    @property
    def ranks(self) -> int:
        return self.work.ranks

    @property
    def tokens(self) -> int:
        """Tokens per step over all ranks; context-parallel ranks share the same tokens."""
        return self.work.tokens * self.degrees.data

    @property
    def samples(self) -> int:
        """Samples per step over all ranks; context-parallel ranks share the same samples."""
        return self.work.samples * self.degrees.data

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON data with the same keys for every run; units are bytes, seconds and FLOPs."""
        return {
            "run": self.name,
            "family": self.family,
            "gpus": self.ranks,
            "degrees": asdict(self.degrees),
            "gpu": asdict(self.gpu),
            "data": self.data,
            "quick": asdict(self.quick),
            "memory": self.memory.to_json(),
            "host_memory": self.host.to_json(),
            "disk": self.disk.to_json(),
            "step": {"samples": self.samples, "tokens": self.tokens, "work": self.work.to_json()},
            "seconds": None if self.step is None else asdict(self.step),
            "time": None if self.time is None else self.time.to_json(),
            "efficiencies": {
                name: {**asdict(efficiency), "of": quantity} for name, (efficiency, quantity) in EFFICIENCIES.items()
            },
            "untimed": self.untimed,
            "assumptions": dict(self.assumptions),
        }


def make_plan(
    config: Trainer.Config, ranks: int, gpu: Gpu, *, encoded: bool = False, open_variables: Sequence[str] = ()
) -> Plan:
    """Plans a run: simulates a step on one rank and estimates memory, disk space and time.

    No GPU is needed and no memory is allocated for tensors; it can take up to a minute.

    Args:
        config: Config with resolved references.
        ranks: Number of ranks.
        gpu: GPU of each rank.
        encoded: Whether the latent cache is complete before the run. False: `trainer.encode_first` decides.
        open_variables: Environment variables that the config names and that are not set; listed as assumptions.

    Raises:
        ValueError: If the parallelism degrees do not fit `ranks`.
        UserError: If the run cannot be planned.
    """
    from worldsmith.planning.simulation.simulate import simulate
    from worldsmith.planning.simulation_inputs import plan_batches, substitute_missing_components

    if encoded and (reason := why_not_encodable(config)):
        raise UserError(f"--encoded: {reason}")
    quick, degrees = quick_plan(config, ranks), plan_degrees(config.model.config.parallelism, ranks)
    with substitute_missing_components(config) as stated:
        data = plan_batches(stated, ranks=ranks)
        work = simulate(stated.config, data.batches, ranks=ranks, phases=BESIDE)
    work, first = plan_encoding(config, work, gpu, states=sum(quick.states.values()), encoded=encoded)
    memory, untimed = memory_verdict(work, gpu), why_untimed(config, gpu)
    step = None if untimed else step_seconds(work, gpu, compiled=config.model.config.compile.enabled)
    host_bytes = {phase.name: phase.main_memory for phase in work.phases}
    offloaded, checkpoint = host_bytes["optimizer"], quick.checkpoint_bytes
    staged, inputs = host_bytes["saving"] - offloaded, max(host_bytes["forward"], host_bytes["backward"]) - offloaded
    inputs *= config.model.config.activation_checkpointing.offload
    return Plan(
        name=config.job.name or config.model.name,
        family=config.model.name,
        degrees=degrees,
        gpu=gpu,
        quick=quick,
        work=work,
        data=data.described,
        memory=memory,
        host=host_memory(
            config,
            degrees,
            per_machine=gpu.per_machine,
            staged=staged,
            loaded=max(0, host_bytes["loading"] - offloaded),
            offloaded=offloaded,
            activations=inputs,
            sample_bytes=data.sample_bytes,
        ),
        disk=disk(config, checkpoint_bytes=checkpoint, cached_bytes=data.cache_bytes * (data.num_samples or 0)),
        step=step,
        time=None
        if step is None
        else run_time(config, step, ranks=ranks, staged_bytes=staged, checkpoint_bytes=checkpoint),
        untimed=untimed,
        assumptions=assumptions(
            config,
            gpu,
            ranks,
            data,
            timed=not untimed,
            copies=work.copied_bytes > 0,
            encoders=encoded_first(work, in_run=first) if encoded or first else BESIDE_STEPS if memory.encoders else "",
            open_variables=open_variables,
            substitutes=stated.assumptions,
        ),
    )


def why_untimed(config: Trainer.Config, gpu: Gpu) -> str:
    """Returns the reason why the time of a step cannot be estimated; "" if it can."""
    if not gpu.peak_flops:
        named = next(iter([*holding(gpu.memory), *GPUS.values()])).name
        return (
            f"{gpu.name} only states a memory size, no speed; to estimate the time, name a GPU, such as --gpu {named}"
        )
    if config.model.config.precision == "float32":
        return "the run computes in float32, but GPU speeds are known for 16-bit precision only"
    if config.model.config.parallelism.offload == "all":
        return 'the optimizer on the CPU and the copies of gradients (offload = "all") are not timed'
    return ""
