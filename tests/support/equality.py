"""The same five steps in many arrangements of processes: `python equality.py FOLDER CASE…` in torchrun's environment.

Each case trains the same twelve samples per step with the trainer's own functions and writes losses and whole gradients
to FOLDER/<case>.pt. The samples are cut into four packs (images only, videos only, mixed, conditioned) that the data
ranks and the accumulation share, or into one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from launch import fork_ranks
from torch import Tensor
from torch.distributed.fsdp import fully_shard  # noqa: F401 (imported once for all forks)
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, ParallelismConfig
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.video_sample import RobotActions, VideoSample
from worldsmith.distributed.context_parallel import divide_work, require_same_packs
from worldsmith.distributed.world import World, stop_world
from worldsmith.families.cosmos3.attention.modes import NeighborhoodConfig
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import init_weights
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.families.cosmos3.task import Cosmos3Task, layout_of
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.grad_clip import clip_gradients
from worldsmith.training.optimizer import AdamW
from worldsmith.training.parallel import build_model, join_world
from worldsmith.training.step import StepInputs, forward_backward

STEPS = 5
PACKS = 4
QWEN = NetworkConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, mrope_section=[2, 1, 1], latent_channel=8,
)  # fmt: skip
EDGE = replace(QWEN, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True)
ACTING = replace(QWEN, action_gen=True, max_action_dim=6, num_embodiment_domains=3)
WRITING_TOWER = ["_moe_gen", "vae2llm", "llm2vae", "time_embedder"]


@dataclass(frozen=True)
class Case:
    """One arrangement; what it does not say is as in a single process."""

    reference: str = "qwen"
    """The case whose numbers it must give."""
    network: NetworkConfig = field(default_factory=lambda: QWEN)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    recompute: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    one_pack: bool = False
    """All samples of a step in one pack; else in four."""
    keys_to_select: tuple[str, ...] = ()
    lora: bool = False
    dropout: float = 0.0
    windows: bool = False
    """The second layer's latents see neighbourhoods."""


FROZEN: dict[str, Any] = {"reference": "frozen", "keys_to_select": tuple(WRITING_TOWER)}
EDGY: dict[str, Any] = {"reference": "edge", "network": EDGE}
LORA: dict[str, Any] = {"reference": "lora", "lora": True}
DROPOUT: dict[str, Any] = {"reference": "dropout", "lora": True, "dropout": 0.3}
WINDOWS: dict[str, Any] = {"reference": "windows", "windows": True}
ACTIONS: dict[str, Any] = {"reference": "actions", "network": ACTING}
"""Only the pack with clean first frames has robot actions."""


def context(ranks: int, **degrees: Any) -> ParallelismConfig:
    return ParallelismConfig(context_parallel_shard_degree=ranks, **degrees)


def recompute(mode: str, **settings: Any) -> ActivationCheckpointingConfig:
    return ActivationCheckpointingConfig(mode=mode, **settings)  # type: ignore[arg-type]


COMPILED = CompileConfig(enabled=True)
MATMULS = recompute("selective", save_every_second_matmul=True)
OFFLOADED: dict[str, Any] = {**LORA, "parallelism": ParallelismConfig(offload="frozen")}
ALL: dict[str, Any] = {"parallelism": ParallelismConfig(offload="all")}
HALF: dict[str, Any] = {"parallelism": ParallelismConfig(offload="all", offload_fraction=0.5, reduce_every_pack=True)}
CASES: dict[int, dict[str, Case]] = {
    1: {
        "qwen": Case(),
        "edge": Case(**EDGY),
        "frozen": Case(**FROZEN),
        "lora": Case(**LORA),
        "dropout": Case(**DROPOUT),
        "windows": Case(**WINDOWS),
        "actions": Case(**ACTIONS),
        "actions_one_pack_full": Case(**ACTIONS, one_pack=True, recompute=recompute("full")),
        "actions_compiled": Case(**ACTIONS, compile=COMPILED),
        "one_pack": Case(one_pack=True),
        "full": Case(recompute=recompute("full", determinism_check="match")),
        "selective": Case(recompute=recompute("selective")),
        "frozen_full": Case(**FROZEN, recompute=recompute("full")),
        "dropout_full": Case(**DROPOUT, recompute=recompute("full", determinism_check="match")),
        "dropout_selective": Case(**DROPOUT, recompute=recompute("selective")),
        "frozen_selective": Case(**FROZEN, recompute=recompute("selective", save_ops_regex=["fmha", r"aten\.mm"])),
        "compiled": Case(compile=COMPILED),
        "compiled_full": Case(compile=COMPILED, recompute=recompute("full")),
        "compiled_selective": Case(compile=COMPILED, recompute=recompute("selective")),
        "matmuls": Case(recompute=MATMULS),
        "compiled_matmuls": Case(compile=COMPILED, recompute=MATMULS),
        "compiled_frozen": Case(**FROZEN, compile=COMPILED),
        "compiled_lora": Case(**LORA, compile=COMPILED),
        "lora_offloaded": Case(**OFFLOADED),
        "lora_offloaded_full": Case(**OFFLOADED, recompute=recompute("full", determinism_check="match")),
        "offloaded": Case(**ALL, recompute=recompute("full", determinism_check="match")),
        "frozen_offloaded_half": Case(**FROZEN, **HALF),
        "lora_all_offloaded": Case(**LORA, **ALL),
    },
    2: {
        "fsdp_2": Case(),
        "fsdp_2_lora": Case(**LORA),
        "fsdp_2_lora_offloaded": Case(**OFFLOADED),
        "replicate_2_lora_offloaded": Case(
            **LORA, parallelism=ParallelismConfig(data_parallel_replicate_degree=2, offload="frozen")
        ),
        "cp_2_lora_offloaded": Case(**LORA, parallelism=context(2, offload="frozen")),
        "fsdp_2_offloaded": Case(**ALL),
        "fsdp_2_lora_all_offloaded": Case(**LORA, **ALL),
        "fsdp_2_every_pack_offloaded_half": Case(**HALF),
        "replicate_2_offloaded": Case(parallelism=ParallelismConfig(data_parallel_replicate_degree=2, offload="all")),
        "cp_2_offloaded": Case(parallelism=context(2, offload="all")),
        "fsdp_2_dropout_full": Case(**DROPOUT, recompute=recompute("full")),
        "fsdp_2_one_pack_each": Case(one_pack=True),
        "fsdp_2_every_pack": Case(parallelism=ParallelismConfig(reduce_every_pack=True)),
        "fsdp_2_compiled_matmuls": Case(compile=COMPILED, recompute=MATMULS),
        "fsdp_2_frozen_every_pack_full": Case(
            **FROZEN, parallelism=ParallelismConfig(reduce_every_pack=True), recompute=recompute("full")
        ),
        "fsdp_2_actions": Case(**ACTIONS),
        "fsdp_2_actions_every_pack": Case(**ACTIONS, parallelism=ParallelismConfig(reduce_every_pack=True)),
        "cp_2_actions": Case(**ACTIONS, parallelism=context(2)),
        "cp_2_actions_one_pack_full": Case(
            **ACTIONS, one_pack=True, parallelism=context(2), recompute=recompute("full")
        ),
        "replicate_2": Case(parallelism=ParallelismConfig(data_parallel_replicate_degree=2)),
        "cp_2": Case(parallelism=context(2)),
        "cp_2_frozen": Case(**FROZEN, parallelism=context(2)),
        "cp_2_edge_full": Case(**EDGY, parallelism=context(2), recompute=recompute("full")),
        "cp_2_selective": Case(parallelism=context(2), recompute=recompute("selective")),
        "cp_2_lora": Case(**LORA, parallelism=context(2)),
        "cp_2_dropout": Case(**DROPOUT, parallelism=context(2)),
        "cp_2_dropout_full": Case(
            **DROPOUT, parallelism=context(2), recompute=recompute("full", determinism_check="match")
        ),
        "cp_2_windows_full": Case(**WINDOWS, parallelism=context(2), recompute=recompute("full")),
        "sampling_from_shards": Case(),
        "sampling_in_context": Case(parallelism=context(2)),
        "group_agrees": Case(parallelism=context(2)),
        "bfloat16_masters": Case(),
        "cp_2_compiled_full": Case(parallelism=context(2), compile=COMPILED, recompute=recompute("full")),
    },
    4: {
        "fsdp_4": Case(),
        "hsdp_2_2": Case(parallelism=ParallelismConfig(data_parallel_replicate_degree=2)),
        "cp_2_fsdp_2": Case(parallelism=context(2)),
        "cp_4": Case(parallelism=context(4)),
        "cp_2_fsdp_2_actions": Case(**ACTIONS, parallelism=context(2)),
        "cp_2_hsdp_2_2_frozen_full": Case(
            **FROZEN, parallelism=context(2, data_parallel_replicate_degree=2), recompute=recompute("full")
        ),
        "cp_2_hsdp_2_2_frozen_every_pack": Case(
            **FROZEN, parallelism=context(2, data_parallel_replicate_degree=2, reduce_every_pack=True)
        ),
        "cp_4_edge": Case(**EDGY, parallelism=context(4)),
    },
}
SLOW = {
    *("compiled_full", "compiled_selective", "compiled_matmuls", "actions_compiled", "compiled_frozen"),
    *("compiled_lora", "fsdp_2_compiled_matmuls", "cp_2_compiled_full"),
}
"""Compiling takes half a minute each: once is enough, and without inductor each way of recomputing."""


def make_packs(step: int) -> list[list[VideoSample]]:
    """The four packs of a step, of different sizes: images, videos, both, and videos with clean first frames."""
    image, video, longer = (1, 4, 4), (3, 2, 4), (2, 6, 3)
    shapes = [[image] * 4, [video, longer], [image, longer, video], [longer, video, longer]]
    packs = []
    position = 100 * step
    for number, pack in enumerate(shapes):
        samples = []
        for shape in pack:
            position += 1
            samples.append(make_sample(position, shape, condition_frames=int(number == 3)))
        packs.append(samples)
    return packs


def add_actions(samples: list[VideoSample]) -> None:
    """Makes three samples forward dynamics, joint prediction with a state row, and inverse dynamics."""
    for sample, clean_rows, domain in zip(samples, (4, 1, 0), (1, 0, 1), strict=True):
        rows = torch.randn(4 + clean_rows % 4, 5 - domain, generator=torch.Generator().manual_seed(sample.position))
        sample.actions = RobotActions(rows, clean_rows, offset=1 - clean_rows % 4, domain=domain, fps=8.0)
    samples[-1].condition_frames = samples[-1].latent_shape[0]


def make_sample(position: int, shape: tuple[int, int, int], *, condition_frames: int) -> VideoSample:
    stream = torch.Generator().manual_seed(position)
    length = int(torch.randint(3, 9, (), generator=stream))
    return VideoSample(
        key=f"sample_{position}",
        position=position,
        text_ids=torch.randint(0, 60, (length,), generator=stream).tolist(),
        caption="",
        video=None,
        latents=torch.randn(QWEN.latent_channel, *shape, generator=stream),
        latent_shape=shape,
        size=(64, 64),
        num_frames=4 * (shape[0] - 1) + 1,
        fps=8.0,
        condition_frames=condition_frames,
        num_tokens=0,
        cache_key=None,
        resolution="64",
    )


def model_config(case: Case) -> Cosmos3Generator.Config:
    windows = {
        "2d": NeighborhoodConfig(window_size=[2, -1], is_causal=[True, False]),
        "3d": NeighborhoodConfig(window_size=[-1, 2, 2]),
    }
    return Cosmos3Generator.Config(
        precision="float32",
        joint_attn_implementation="three_way" if case.windows else "two_way",
        natten_parameter_list=[{}, windows] if case.windows else [],
        network=case.network,
        parallelism=case.parallelism,
        activation_checkpointing=case.recompute,
        compile=case.compile,
        **({"lora_enabled": True, "lora_rank": 4, "lora_dropout": case.dropout} if case.lora else {}),
        tokenizer=WanVAE.Config(vae_path="none"),
        text_tokenizer=TextTokenizer.Config(path="none"),
    )


def prepare(case: Case, world: World, model: Cosmos3Generator.Config | None = None) -> tuple[Cosmos3Generator, AdamW]:
    """The generator as the trainer builds it, with weights, and its optimizer."""
    generator = build_model(model or model_config(case), world)
    generator.__dict__["text_tokenizer"] = SimpleNamespace(eos_id=61, vision_start_id=62)  # no captions are read here
    init_weights(generator.network, seed=7)
    settings = AdamW.Config(lr=1e-3, eps=1e-6, weight_decay=0.01, keys_to_select=list(case.keys_to_select), fused=False)
    return generator, settings.build(network=generator.network)


def make_task(generator: Cosmos3Generator, world: World) -> Cosmos3Task:
    objective = ActionFlow if generator.config.network.action_gen else RectifiedFlow
    return Cosmos3Task(model=generator, objective=objective.Config(shift=3.0), data=VideoLoader.Config(), world=world)


def rank_packs(case: Case, index: int, world: World) -> list[list[VideoSample]]:
    """What this rank's loader would give for a step."""
    packs = make_packs(index)
    if case.network.action_gen:
        add_actions(packs[-1])
    own = packs[world.data_rank :: world.data_size]
    return [list(chain(*own))] if case.one_pack else own


def run_case(case: Case, world: World) -> dict[str, Any]:
    """Losses and gradients of all steps, and what the first step sent: {op: (calls, bytes)} on this rank."""
    generator, adamw = prepare(case, world)
    task = make_task(generator, world)
    losses, gradients, traffic = [], [], {}
    for index in range(STEPS):
        inputs = StepInputs(index, rank_packs(case, index, world))
        with count_traffic() if index == 0 and not case.compile.enabled else contextlib.nullcontext() as counted:
            step = forward_backward(inputs, task, seed=3)
        traffic = dict(counted.sent) if counted is not None else traffic
        losses.append(step.loss)
        gradients.append(whole_gradients(generator))
        clip_gradients(adamw.parameters, 1.0)
        adamw.optimizer.step()
        adamw.optimizer.zero_grad(set_to_none=True)
    return {"losses": losses, "gradients": gradients, "samples": step.samples, "traffic": traffic}


def whole_gradients(generator: Cosmos3Generator) -> dict[str, Tensor]:
    """All gradients by native name, gathered from their shards."""
    found = {}
    for name, parameter in native_parameters(generator.network).items():
        if parameter.grad is not None:
            found[name] = whole(parameter.grad).clone()
    return found


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sampling_from_shards(case: Case, world: World) -> dict[str, Any]:
    """What a sharded network reads of a text and answers with it, and the share of the weights that a rank holds."""
    generator, _ = prepare(case, world)
    network, samples = generator.network, make_packs(0)[2]
    pack = generator.pack([layout_of(sample) for sample in samples])
    latents = [sample.latents for sample in samples if sample.latents is not None]
    timesteps = torch.full((len(samples),), 500.0)
    with torch.no_grad():
        memory = network.read_text(pack)
        states = network.text_states(pack)
        velocities = [network(pack, latents, timesteps, memory), network(pack, latents, timesteps)]
    held = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in network.parameters())
    return {
        "weights": {name: whole(p.detach()).clone() for name, p in native_parameters(network).items()},
        "held": world.gather(held),
        "memory": memory,
        "states": states,
        "velocities": velocities,
    }


def group_agrees(case: Case, world: World) -> dict[str, Any]:
    """Encoding divided in a context-parallel group, and what happens when its ranks have read different data."""
    made: list[int] = []

    def make(index: int) -> Tensor:
        made.append(index)
        return torch.full((2, index + 1), 10.0 * index + world.rank, dtype=torch.float64)

    tensors = divide_work(world, [(2, index + 1) for index in range(5)], make)
    require_same_packs(world, ["same"])
    complaint = ""
    try:
        require_same_packs(world, [world.rank])
    except RuntimeError as error:
        complaint = str(error)
    return {"made": world.gather(made), "tensors": world.gather(tensors), "complaints": world.gather(complaint)}


def bfloat16_masters(case: Case, world: World) -> dict[str, Any]:
    """One step with weights, gradients and moments in bfloat16, gradients of its packs summed in float32."""
    model = model_config(case)
    model.precision = model.parallelism.fsdp_master_dtype = "bfloat16"
    generator, adamw = prepare(case, world, model)
    step = forward_backward(StepInputs(0, rank_packs(case, 0, world)), make_task(generator, world), seed=3)
    adamw.optimizer.step()
    kinds = {name: p.dtype for name, p in native_parameters(generator.network).items()}
    return {"loss": step.loss, "dtypes": kinds, "gradients": whole_gradients(generator)}


CHECKS = {
    "sampling_from_shards": sampling_from_shards,
    "sampling_in_context": sampling_from_shards,
    "group_agrees": group_agrees,
    "bfloat16_masters": bfloat16_masters,
    "cp_2_dropout": run_case,
    "cp_2_dropout_full": run_case,
}
"""Cases of a launch that are not five steps, or five steps with other random numbers than a single process draws."""


class Traffic(TorchDispatchMode):
    """Counts collectives and the bytes that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("c10d"):
            self.sent[f"{name} calls"] += 1
            self.sent[f"{name} bytes"] += sum(
                t.nbytes for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, Tensor)
            )
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def count_traffic() -> Iterator[Traffic]:
    with Traffic() as traffic:
        yield traffic


def run_rank(folder: Path, names: list[str]) -> None:
    """One process of a launch."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ranks = int(os.environ["WORLD_SIZE"])
    for name in names:
        case = CASES[ranks][name]
        world = join_world(model_config(case))
        result = CHECKS[name](case, world) if name in CHECKS else run_case(case, world)
        if world.is_main:
            torch.save(result, folder / f"{name}.pt")
    stop_world()


if __name__ == "__main__":
    import peft  # noqa: F401

    sys.exit(fork_ranks(partial(run_rank, Path(sys.argv[1]), sys.argv[2:])))
