"""A plan made of numbers that stand here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worldsmith.config.load import load
from worldsmith.distributed.degrees import Degrees
from worldsmith.distributed.gpus import GIB, find_gpu
from worldsmith.planning.assumptions import assumptions
from worldsmith.planning.estimate_memory import MemoryVerdict, disk, host_memory, worst_phase
from worldsmith.planning.estimate_time import run_time, step_seconds
from worldsmith.planning.plan import Plan, QuickPlan
from worldsmith.planning.simulation_inputs import PlannedBatches
from worldsmith.planning.work import PhaseMemory, StepWork, Traffic

QUICK = QuickPlan(
    parameters=15_200_000_000,
    trained=7_000_000_000,
    states={"parameters": 7 * GIB, "gradients": 26 * GIB, "moments": 6 * GIB, "average": 7 * GIB},
    checkpoint_bytes=85 * GIB,
)
DATA = PlannedBatches((), "assumed: 46 clips of 61 frames of 320x192 pixels", 50 * 2**20, 2**20)
DEGREES = Degrees(2, 8)


def phase(name: str, *modules: tuple[str, int], main_memory: float = 0, **gib: float) -> PhaseMemory:
    kinds = {kind: int(amount * GIB) for kind, amount in gib.items()}
    return PhaseMemory(name, sum(kinds.values()), kinds, modules, int(main_memory * GIB))


STATES = {"parameters": 7.0, "gradients": 26.0, "moments": 6.0, "average": 7.0}
WORK = StepWork(
    rank=0,
    ranks=16,
    phases=(
        phase("building", parameters=7, average=7),
        phase("loading", parameters=7, average=7, main_memory=2.3),
        phase("forward", **STATES, activations=18.5, gathered=1.1, inputs=0.3),
        phase("backward", ("36 layers", 18 * GIB), ("head", 2 * GIB), **STATES, activations=20.5, gathered=1.1),
        phase("optimizer", parameters=7, gradients=3.2, moments=6, average=7, other=0.4),
        phase("saving", parameters=7, moments=6, average=7, main_memory=10.625),
    ),
    traffic=(
        Traffic("all_gather", "dp_shard", 8, 8, 74, 60 * GIB),
        Traffic("reduce_scatter", "dp_shard", 8, 8, 37, 28 * GIB),
        Traffic("all_reduce", "dp_replicate", 2, 9, 37, 4 * GIB),
        Traffic("all_reduce", "world", 16, 16, 3, 64),
    ),
    model_flops=3_100_000_000_000_000,
    hardware_flops=4_000_000_000_000_000,
    attention_flops=1_100_000_000_000_000,
    moved_bytes=2_900_000_000_000,
    samples=92,
    tokens=87_000,
    seconds=19.0,
)


def fixed_plan(word: str = "h100-80", **changes: Any) -> Plan:
    """Of Nano on two machines; `changes` are those of its work."""
    config, gpu, work = load("vision_sft_nano", keep_unset=True).tree, find_gpu(word), replace(WORK, **changes)
    step, checkpoint, staged = step_seconds(work, gpu, compiled=True), QUICK.checkpoint_bytes, int(10.625 * GIB)
    return Plan(
        name="vision_sft_nano",
        family="cosmos3",
        degrees=DEGREES,
        gpu=gpu,
        quick=QUICK,
        work=work,
        data=DATA.described,
        memory=MemoryVerdict(gpu, worst_phase(work)[0].peak, work.ranks),
        host=host_memory(config, DEGREES, per_machine=8, staged=staged, sample_bytes=DATA.sample_bytes),
        disk=disk(config, cached_bytes=0, checkpoint_bytes=checkpoint),
        step=step,
        time=step and run_time(config, step, ranks=work.ranks, staged_bytes=staged, checkpoint_bytes=checkpoint),
        untimed="" if step else "its memory alone is known",
        assumptions=assumptions(
            config,
            gpu,
            work.ranks,
            DATA,
            timed=step is not None,
            copies=work.copied_bytes > 0,
            open_variables=["DATASET_PATH", "WAN_VAE_PATH"],
        ),
    )
