"""Weights & Biases: a run's metrics under one id, over all its starts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.atomic import write_text
from worldsmith.monitor.sinks import numbers

if TYPE_CHECKING:
    from worldsmith.config.sections import JobConfig

ID_FILE = "wandb_id.txt"


class WandbLog:
    """Sends every number, or keeps it for `wandb sync`, in `wandb/` of the run folder; `wandb_id.txt` has the id.

    A run that goes on does so under the same id; what it does again is there twice, with the same step. The command
    line, the environment and the code of the process are not sent. Raises what `wandb` raises.
    """

    def __init__(self, folder: Path, job: JobConfig, tree: Mapping[str, Any]) -> None:
        """`tree`: the run tree, which is shown beside the curves."""
        import wandb

        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        self.run = wandb.init(
            dir=folder.absolute(),
            id=stable_id(folder / ID_FILE),
            resume="allow",
            mode=job.wandb_mode,
            project=job.project,
            group=job.group,
            name=job.name,
            config=dict(tree),
            settings=settings,
        )
        # A step of its own: wandb's own counter refuses the steps that a resumed run does again.
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.run.log({**dict(numbers(metrics)), "step": step})

    def close(self, *, failed: bool = False) -> None:
        import wandb

        try:
            self.run.finish(exit_code=int(failed))
        except Exception:
            with suppress(Exception):  # its process is gone: nothing may wait for it at exit
                wandb.teardown()
            raise


def stable_id(path: Path) -> str:
    """The id that the file holds; a new one is written to it."""
    if not path.exists():
        write_text(path, f"{secrets.token_hex(4)}\n")
    return path.read_text(encoding="utf-8").strip()
