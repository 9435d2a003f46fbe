"""`--processes`: a command starts its processes itself, as `worldsmith launch` does."""

from __future__ import annotations

import os
from collections.abc import Sequence

from worldsmith.config.errors import UserError
from worldsmith.config.specs.translation import Translation
from worldsmith.config.tree.draft import Loaded
from worldsmith.distributed.world import world_size

FIELD = "processes"


def processes_to_start(loaded: Loaded, spec: Translation | None) -> int:
    """How many processes share the work of an action; 1: this one does it, also in a launch.

    The number of a spec is limited to the GPUs of this machine, with a warning in `loaded`. Raises UserError for more
    processes than GPUs, and in a launch for another number than the launch has.
    """
    asked, device = getattr(loaded.tree, FIELD, None), getattr(loaded.tree, "device", None)
    if "WORLD_SIZE" in os.environ or "RANK" in os.environ:
        if asked not in (None, world_size()):
            raise UserError(f"the launch has {world_size()} processes, which share the work: leave --{FIELD} out")
        return 1
    if asked is None or asked == 1:
        return 1
    import torch

    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if spec is None or loaded.places.get((FIELD,)) != spec.spec.place("num_gpus"):
        if 0 < gpus < asked and device is None:
            raise UserError(f"--{FIELD} {asked}: each needs a GPU, and this machine has {gpus}; give --{FIELD} {gpus}")
        return int(asked)
    running = 1 if device is not None else max(1, min(asked, gpus))
    if running < asked:
        found = f"this machine has {gpus or 'no'} {'GPU' if gpus == 1 else 'GPUs'}"
        reason = found if device is None else f"--device is {device}"
        advice = f"; --{FIELD} N starts N all the same" if not gpus or device is not None else ""
        loaded.warnings.append(
            f"num_gpus asks for {asked} processes, each with a GPU of its own, and {reason}: {running} of {asked} "
            f"processes {'answers' if running == 1 else 'answer'}{advice}"
        )
    return running


def start_processes(count: int, name: str, head: Sequence[str], tail: Sequence[str], packages: Sequence[str]) -> int:
    """Runs the command in so many processes of this machine; returns its exit code."""
    from worldsmith.cli.launch import launch

    words = ["--nproc-per-node", str(count), name, *head, *(["--", *tail] if tail else [])]
    return launch(words, packages)
