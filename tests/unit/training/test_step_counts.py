"""What a step of each family asks of its device besides computing: copies from the host, and reads.

The network is on the meta device, to which a tensor of the CPU must be copied as to a GPU. A value of it cannot be
read: each read in a forward or backward pass would be an error.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pipeline_runs
import pytest
import reasoner_runs
import tiny_cogvideox
import tiny_runs
import tiny_wan
import torch
from reasoners import write_decoder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worldsmith.config.sections import ActivationCheckpointingConfig
from worldsmith.distributed.world import World
from worldsmith.tasks.device_copy import StagedTensors
from worldsmith.tasks.registry import task_of
from worldsmith.training.parallel import prepare_network
from worldsmith.training.step import forward_backward_batch

META = torch.device("meta")
TURNS = [{"from": "human", "value": "Is the clip possible?"}, {"from": "gpt", "value": "yes"}]
CASES: dict[str, Callable[[Path], Any]] = {
    "cosmos3": lambda folder: tiny_runs.tiny_config(tiny_runs.make_world(folder)),
    "reasoner": lambda folder: reasoner_runs.reasoner_config(reasoner_runs.make_world(folder)),
    "text_decoder": lambda folder: text_config(folder),
    "cogvideox_i2v": lambda folder: tiny_cogvideox.tiny_config(
        tiny_cogvideox.make_world(folder), "cogvideox1_5_5b_i2v_tiny"
    ),
    "wan_i2v": lambda folder: tiny_wan.tiny_config(tiny_wan.make_world(folder), "wan22_i2v_a14b_tiny"),
    **{
        family: lambda folder, family=family: pipeline_runs.pipeline_config(
            family, pipeline_runs.make_world(family, folder)
        )
        for family in pipeline_runs.FAMILIES
    },
}


def text_config(folder: Path) -> Any:
    """A run of a text decoder over conversations without media."""
    reasoner_runs.make_world(folder, write=write_decoder)
    records = [{"id": str(n), "conversations": TURNS} for n in range(4)]
    (folder / "data/annotations.json").write_text(json.dumps(records))
    return reasoner_runs.reasoner_config(folder)


class CopyCounter(TorchDispatchMode):
    """Counts by place what copies values from the host to the device: also an index on the CPU, and `torch.tensor`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __enter__(self) -> CopyCounter:
        self.patch = pytest.MonkeyPatch()
        for name in ("tensor", "as_tensor"):
            self.patch.setattr(torch, name, partial(self.counted, getattr(torch, name)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.patch.undo()

    def counted(self, make: Callable[..., torch.Tensor], data: Any, **settings: Any) -> torch.Tensor:
        made = make(data, **settings)
        if made.device == META and not isinstance(data, torch.Tensor):
            self.count()
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = (
            [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)] for values in ((args, kwargs), out)
        )
        moves = func._overloadpacket.__name__ in ("_to_copy", "copy_")  # a number on the CPU may be an operand
        if any(leaf.is_cpu and (moves or leaf.ndim) for leaf in given) and any(leaf.is_meta for leaf in made):
            self.count()
        return out

    def count(self) -> None:
        *_, place = (f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__)
        self.found[f"{Path(place.filename).name}: {place.name}"] += 1


def cached_batch(config: Any, folder: Path) -> list[Any]:
    """Samples of one shape, whose latents and captions are in the caches in `folder`."""
    config.dataloader_train.num_workers = 0
    is_cached = hasattr(config.dataloader_train, "latent_cache")
    if is_cached:
        config.dataloader_train.latent_cache = str(folder)
    task = make_task(config, World())
    if is_cached:
        for sample in task.loader().first_samples():
            task.encoder.encode(sample)
    samples = list(task.loader().first_samples())
    shapes = Counter(getattr(sample, "latent_shape", None) for sample in samples)
    return [sample for sample in samples if getattr(sample, "latent_shape", None) == shapes.most_common(1)[0][0]]


def make_task(config: Any, world: World) -> Any:
    model = config.model.config.build(device="meta")
    prepare_network(model, world)
    model.materialize(world.device)
    if world.device == "cpu":
        model.init_weights(0)
    return task_of(config.model.name)(
        model=model, objective=config.objective, data=config.dataloader_train, world=world
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["full", pytest.param("none", marks=pytest.mark.slow)])
def test_a_pack_is_copied_once_whatever_the_number_of_its_samples(
    case: str, mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **settings: nullcontext())  # which the meta device lacks
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    config = CASES[case](tmp_path / "world")
    config.model.config.activation_checkpointing = ActivationCheckpointingConfig(mode=mode)
    batch = cached_batch(config, tmp_path / "cache")
    task = make_task(config, World(device="meta"))
    if case in ("cosmos3", "reasoner", "text_decoder"):  # attention by variable length, as on a GPU
        task.model.network.bfloat16()
    task.latent_cache = None  # its fingerprint would read the VAE's weights
    task.loss(batch, seed=0)  # loads a VAE that samples latents from their posterior
    for samples in (batch[:1], batch):
        with CopyCounter() as prepared:
            staged = StagedTensors(task.prepare(samples, seed=0), META)
        assert not prepared.found, "the thread does not use the device"
        with CopyCounter() as copies:
            reader: Any = SimpleNamespace(inputs_of=lambda _, staged=staged: staged.move())
            loss = forward_backward_batch(task, samples, 1.0, seed=0, reader=reader)
        assert copies.found == {"device_copy.py: move": 1}
        assert loss.sum.device == META
    assert len(batch) > 1
