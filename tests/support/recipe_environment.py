"""The places that the shipped recipes read from the environment, and what loading one of them warns of."""

from typing import Any

PLACES = (
    "DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "VLM_SAFETENSORS_PATH",
    "COGVIDEOX_PATH", "FLUX_PATH", "LTX_PATH", "WAN_PATH", "LIBERO_ROOT", "DROID_ROOT", "ROBOT_STATISTICS",
)  # fmt: skip


def expected_warnings(tree: Any) -> list[str]:
    """The published schedule of LLaVA-OneVision ends in its warm-up; no other recipe has a warning."""
    schedule = tree.scheduler
    if not schedule.warm_up_steps[0] >= schedule.cycle_lengths[0]:
        return []
    assert (schedule.warm_up_steps, schedule.cycle_lengths, tree.trainer.max_iter) == ([1000], [500], 500)
    return [
        "scheduler.warm_up_steps[0] = 1000 is not below cycle_lengths[0] = 500: the learning rate is still in warm-up "
        "at step 500, where it reaches 52.5% of optimizer.lr, and there is no decay"
    ]
