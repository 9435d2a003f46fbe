"""What the groups of collectives are called."""

import torch

from worldsmith.distributed.degrees import Degrees
from worldsmith.planning.simulation.tracked_run import group_names
from worldsmith.planning.simulation.traffic import TrafficRecorder


def test_ranks_that_share_weights_and_a_context_have_both_names() -> None:
    recorder, ranks = TrafficRecorder(), tuple(range(8))
    recorder.names = group_names(Degrees(shard=1, replicate=1, context=8), 0, 8)
    for op in ("all_gather", "all_to_all", "reduce_scatter", "broadcast"):
        recorder.add(op, ranks, 100, torch.float32)
    groups = {traffic.op: traffic.group for traffic in recorder.sums()}
    assert groups == {
        "all_gather": "dp_shard",
        "all_to_all": "context",
        "reduce_scatter": "dp_shard",
        "broadcast": "context",
    }
