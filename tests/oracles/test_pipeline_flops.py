"""Operations that are counted without memory, against PyTorch's counter over a real step on a tiny network."""

from __future__ import annotations

from pathlib import Path

import pipeline_ranks
import pytest
from pipeline_runs import FAMILIES, make_world
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from worldsmith.distributed.world import World

OTHERS = [
    pytest.param(f"{family}.{kind}", marks=pytest.mark.slow)
    for family in FAMILIES
    for kind in ("plain", "adapters")
    if family != "cogvideox"
]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds")


@pytest.mark.parametrize("case", ["cogvideox.plain", "cogvideox.full", "cogvideox.adapters", *OTHERS])
def test_a_step_has_the_operations_that_pytorch_counts(case: str, worlds: Path) -> None:
    """With adapters there are fewer, since most weights have no gradient; what is recomputed is not counted."""
    family = case.partition(".")[0]
    if not (worlds / family).exists():
        make_world(family, worlds / family)
    samples = pipeline_ranks.samples_of(pipeline_ranks.config_of(f"{family}.plain", worlds))
    task = pipeline_ranks.make_task(pipeline_ranks.config_of(case, worlds), World())
    assert task.count_flops(samples) is None, "nothing is known of a batch that no pass has seen"
    judge = pipeline_ranks.make_task(pipeline_ranks.config_of(case.replace("full", "plain"), worlds), World())
    predict, counter = judge.model.predict, FlopCounterMode(display=False)

    def counted(*given, **beside):
        with counter:
            return predict(*given, **beside)

    with sdpa_kernel(SDPBackend.MATH):
        judge.model.predict = counted
        loss = judge.loss(samples, seed=0).sum
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    task.loss(samples, seed=0)
    assert task.count_flops(samples) == forward + backward.get_total_flops()
    assert backward.get_total_flops() > forward * (0.5 if case.endswith("adapters") else 1)
    assert task.count_flops(samples[:1]) is None
