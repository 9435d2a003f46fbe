"""What a run needs on disk, looked at before anything is built: all that is missing in one report.

A component says so itself: `check_files` of its Config raises for what is missing, reads little and downloads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from worldsmith.checkpoint.run.find_checkpoint import list_candidates
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.open_weights import require_weights
from worldsmith.config.declare.configurable import find, walk
from worldsmith.config.errors import Problem, UserError
from worldsmith.config.tree.paths import Path as Keys
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.references import resolve
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.world import World
from worldsmith.files.writable import require_writable
from worldsmith.training.run_folder import run_path

if TYPE_CHECKING:
    from worldsmith.training.run_config import RunConfig


def check_files(
    config: RunConfig,
    run_folder: Path | None = None,
    *,
    mistakes: Sequence[Problem] = (),
    variables: Mapping[Keys, str] | None = None,
) -> list[Problem]:
    """What is wrong with the files that a run reads and with its folder, in the order of the tree.

    A run that goes on from a checkpoint with all its weights does not need those that it started from. `mistakes` are
    those of a tree that is resolved apart from them: what they leave unsaid is not looked for. `variables` are the
    environment variables that gave values of the config, which messages about these values name.
    """
    config = config if mistakes else resolve(config)
    wrong = [problem.keys for problem in mistakes if problem.path]
    problems = []
    needs_base = True
    try:
        if not lacks_text(config, ("job",), wrong):
            folder = run_folder or run_path(config.job)
            require_writable(folder, what="the run folder ")
            candidates = list_candidates(folder / "checkpoints").checkpoints
            needs_base = not candidates or is_partial(candidates[0])
    except UserError as error:
        problems.append(Problem("job", str(error)))
    for path, node in walk(config):
        look = getattr(node, "check_files", None)
        if node is config.checkpoint and needs_base:
            look = partial(require_start, config)
        if look is None or (path[:1] == ("dataloader_val",) and not config.trainer.run_validation):
            continue
        if lacks_text(config, path, wrong):
            continue
        try:
            look()
        except (UserError, DataError, OSError, ValueError) as error:
            problems.append(Problem(format_path(path), name_variable(str(error), config, path, variables or {})))
        except Exception:
            if not mistakes:  # it was not made for values that are wrong
                raise
    return problems


def name_variable(message: str, config: RunConfig, section: Keys, variables: Mapping[Keys, str]) -> str:
    """The message about a section, with the environment variable that gave the value in the message."""
    for path, name in variables.items():
        value = find(config, path) if path[: len(section)] == section else None
        if isinstance(value, str) and value and value in message:
            return f"{message} ({format_path(path)} is the value of the environment variable {name})"
    return message


def lacks_text(config: RunConfig, section: Keys, wrong: Sequence[Keys]) -> bool:
    """Whether a text of a section, perhaps the name of a file, is not known because of a mistake."""
    return any(path[:-1] == section and isinstance(find(config, path), (str, NoneType)) for path in wrong)


def require_start(config: RunConfig) -> None:
    """Raises FileNotFoundError or UserError when there are no weights where a new run looks for them; reads none."""
    start = config.initial_weights()
    if start is not None:
        require_weights(start.path, field=start.field.removeprefix("checkpoint."), family=config.model.name)


def require_files(
    config: RunConfig,
    run_folder: Path,
    world: World | None = None,
    variables: Mapping[Keys, str] | None = None,
) -> None:
    """Raises UserError, on all ranks, that lists all that `check_files` finds; process 0 looks."""
    world = world or World()
    problems = world.broadcast(check_files(config, run_folder, variables=variables) if world.is_main else None)
    lines = [f"{problem.path}: {problem.message}" for problem in problems]
    if len(lines) > 1:
        lines = [f"{len(lines)} things are missing or wrong:", *(f"  {line}" for line in lines)]
    if lines:
        raise UserError("\n".join(lines))
