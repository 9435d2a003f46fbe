"""Suggests commands for a run, with the paths of the run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from worldsmith.config.write.values import LAUNCH_WORD, write
from worldsmith.files.json_file import read_json_object
from worldsmith.monitor.page.run_files import RunFiles, lookup
from worldsmith.monitor.page.status import Status

OTHER_CLIPS, OTHER_DATA = "VAL_CLIPS", "VAL_DATA"
"""Placeholders in commands for the paths of clips and of other data that the run was not trained on."""
TRAINED = "training caption"
"""Label of a sample in samples.jsonl whose caption the run was trained on."""
CAPTION = "a caption of your training clips"
"""Placeholder for a prompt."""
POLICY_FILE = "robot_policy.json"
"""End of the names of files in a run folder with what a policy of the run needs."""
PACKAGES = ("--import", "--trust")
"""Options of the start command that all other commands on the run also need."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggested command with a title and its purpose."""

    title: str
    text: str
    command: str


def next_steps(run: RunFiles, status: Status) -> list[Advice]:
    """Returns the commands that are useful in the current state of the run, most useful first."""
    return [*suggest_while_running(run, status), *suggest_continuing(run, status), *using_it(run)]


def suggest_while_running(run: RunFiles, status: Status) -> Iterator[Advice]:
    """Yields suggested commands for a run that is starting or running: watch it, stop it."""
    folder = run.folder.resolve()
    if not status.at_work:
        return
    yield Advice("Watch it live", "Opens this page on this machine and keeps it up to date.", command("watch", folder))
    stop = lookup(run.config, "checkpoint.stop_file", "STOP")
    if stop:
        text = "Saves a checkpoint after the current step and ends the run; the start command resumes it."
        yield Advice("Stop it", text, shlex.join(["touch", str(folder / str(stop))]))


def suggest_continuing(run: RunFiles, status: Status) -> Iterator[Advice]:
    """Yields suggested commands that resume an incomplete run or extend a completed one."""
    if status.at_work or not run.config:
        return
    start = resume_command(run)
    if start is None:
        return
    if status.state == "finished":
        yield Advice(
            "Train longer",
            "Continues from the last checkpoint with twice the steps, on a learning-rate schedule of that length.",
            f"{start} {format_extension(run, 2 * (status.max_iter or status.step))}",
        )
        return
    from_where = (
        f"from {run.checkpoints[-1]}" if run.checkpoints else "from the beginning: no checkpoint has been saved yet"
    )
    if status.state in ("failed", "died"):
        text = "Explains the errors in its logs and how to fix them."
        yield Advice("Explain it", text, command("explain", run.folder.resolve()))
    if status.state == "failed":
        yield Advice(
            "Check the start", "Checks everything before the first step, including files.", f"{start} --dryrun"
        )
        text = f"After the cause is fixed, the run resumes {from_where}."
    else:
        text = f"The run resumes {from_where}; the command that started it does the same."
    yield Advice("Resume it", text, start)


def format_extension(run: RunFiles, steps: int) -> str:
    """Formats the arguments that extend a run to `steps` steps.

    A learning rate schedule that ends in a decay before that step is extended as well.
    """
    words = ["--", f"trainer.max_iter={steps}"]
    cycles, top, bottom = (lookup(run.config, f"scheduler.{name}", []) for name in ("cycle_lengths", "f_max", "f_min"))
    if cycles and sum(cycles) < steps and top[-1:] != bottom[-1:]:
        longer = [*cycles[:-1], cycles[-1] + steps - sum(cycles)]
        words = ["--resume-changed", *words, f"scheduler.cycle_lengths={write(longer, LAUNCH_WORD)}"]
    return shlex.join(words)


def using_it(run: RunFiles, *, here: bool = False) -> Iterator[Advice]:
    """Yields suggested commands that use the checkpoints of a run: export, generate or infer, evaluate.

    Args:
        run: Files of the run.
        here: Whether the commands start in the current folder, so that paths in that folder are relative.
    """
    folder, make = run.folder.resolve(), partial(command, of=run, here=here)
    if not run.checkpoints:
        return
    formats = {"vfm": "a pipeline that diffusers loads", "vlm": "a folder that transformers loads"}
    task = lookup(run.config, "job.task")
    yield Advice(
        "Export it",
        f"Writes the newest checkpoint as {formats.get(task, 'a folder that other libraries load')}.",
        make("export", folder, *full_precision(run), "-o", folder / "export"),
    )
    prompt = str(run.samples[0].get("prompt")) if run.samples else None
    if task == "vfm":
        text = (
            "Generates a video for a caption that the run was trained on. If the run started from random weights, "
            "other prompts give blurred videos."
        )
        given = trained_prompt(run) or CAPTION
        if robots := sorted(folder.glob(f"*{POLICY_FILE}")):
            yield from serve_policy(robots, partial(make, "serve", "policy", folder))
        else:
            yield Advice("Generate", text, make("generate", folder, "--prompt", given, "-o", folder / "videos"))
        if prompts := prompts_file(run):
            text = "Measures the generated videos, and compares them with those of the untrained network."
            options = ("--untrained", folder, "--prompts", prompts, "-o", folder / "evaluation")
            yield Advice("Evaluate", text, make("evaluate", folder, *options))
        else:
            text = "Measures the loss on clips that were not trained on, and generates videos for their captions."
            data = ("--dataset", validation_clips(run) or OTHER_CLIPS, "-o", folder / "held_out")
            yield Advice("Evaluate", text, make("evaluate", folder, *data))
    elif task == "vlm":
        video = run.samples[0].get("media") if run.samples else None
        arguments = (
            "--prompt",
            prompt or "What happens?",
            "--video",
            Path(os.path.normpath(folder / str(video))) if video else "VIDEO.mp4",
        )
        yield Advice("Ask it", "Answers one question.", make("infer", folder, *arguments))
        kind, path = find_evaluation_data(run)
        if kind:
            questions = ("--dataset", kind, "--dataset.path", path or OTHER_DATA, "-o", folder / "evaluation")
            text = "Answers all questions of a dataset and compares the answers with the ground truth."
            yield Advice("Evaluate", text, make("evaluate", folder, *questions))


def serve_policy(robots: Sequence[Path], make: Callable[..., str]) -> Iterator[Advice]:
    """Yields the command that serves a run as a policy, if it was trained to predict the actions of a robot.

    Args:
        robots: The policy files of the run, one per robot dataset.
        make: Formats the command with further arguments.
    """
    for file in robots:
        if {"wam", "policy"} & read_json_object(file)["dataset"]["modes"].keys():
            name = file.name.removesuffix(POLICY_FILE).rstrip("_")
            text = "Serves the run as a policy of its robot, until it is interrupted."
            yield Advice("Serve it", text, make(*(("--dataset", name) if len(robots) > 1 else ())))
            return


def full_precision(run: RunFiles) -> tuple[str, ...]:
    """Returns ("--dtype", "float32"), options of `worldsmith export`, if the network computes in float32, else ()."""
    return ("--dtype", "float32") if lookup(run.config, "model.config.precision") == "float32" else ()


def trained_prompt(run: RunFiles) -> str | None:
    """Returns the prompt of a generated sample: a training caption, else a prompt from the config; None without one.

    Never returns a held-out caption. Samples of earlier versions of Worldsmith do not state whether their prompt is a
    held-out caption. They are ignored if it could be one: if the run has validation and its config has no prompts.
    """
    trained = next((str(sample.get("prompt")) for sample in run.samples if sample.get("source") == TRAINED), None)
    if trained is not None:
        return trained
    own = lookup(run.config, "trainer.callbacks.EveryNDrawSample.prompts")
    if lookup(run.config, "trainer.run_validation") and not own:
        return None
    return next((str(sample.get("prompt")) for sample in run.samples if not sample.get("source")), None)


def resume_command(run: RunFiles) -> str | None:
    """Returns the command that resumes a run with the config.yaml in its folder; None if the folder was moved."""
    folder = run.folder.resolve()
    names = [lookup(run.config, f"job.{name}") for name in ("project", "group", "name")]
    if list(folder.parts[-3:]) != names:
        return None
    words = [*packages(run), "train", str(folder / "config.yaml")]
    processes = lookup(run.environment, "world_size", 1)
    if isinstance(processes, int) and processes > 1:
        words = ["launch", "--nproc-per-node", str(processes), *words]
    root = shlex.quote(str(folder.parents[2]))
    return f"{change_folder(run)}WORLDSMITH_OUTPUT_ROOT={root} worldsmith {shlex.join(words)}"


def command(name: str, *words: object, of: RunFiles | None = None, here: bool = False) -> str:
    """Formats a `worldsmith` command for a shell.

    A command on a run gets the run's `--import` and `--trust` options, and a `cd` to the folder in which the run was
    started.

    Args:
        name: Subcommand of `worldsmith`.
        words: Arguments of the subcommand, which are converted to strings and quoted for the shell.
        of: Run that the command is for; None: a command without such options and without a `cd`.
        here: Whether the command starts in the current folder: paths in that folder are relative, without a `cd`.
    """
    if here:
        current = Path.cwd()
        words = tuple(os.path.relpath(w) if isinstance(w, Path) and w.is_relative_to(current) else w for w in words)
    line = shlex.join(["worldsmith", *(packages(of) if of else []), name, *map(str, words)])
    return f"{change_folder(of)}{line}" if of and not here else line


def change_folder(run: RunFiles) -> str:
    """Returns the prefix `cd FOLDER && `, where the run was started in FOLDER; "" if FOLDER is not known."""
    folder = run.launch.get("working_directory")
    return f"cd {shlex.quote(str(folder))} && " if folder else ""


def packages(run: RunFiles) -> list[str]:
    """Returns the `--import` and `--trust` options, with their values, of the command that started the run."""
    try:
        words = shlex.split(str(run.launch.get("cmd") or ""))
    except ValueError:
        return []
    words = words[: words.index("--")] if "--" in words else words
    pairs = [(word, words[i + 1]) for i, word in enumerate(words[:-1]) if word in PACKAGES]
    return [part for pair in pairs for part in pair]


def prompts_file(run: RunFiles) -> Path | None:
    """Returns `prompts.jsonl` in the folder of the training data or its parent; None if it does not exist."""
    folders = data_folders(run)
    return next((file for folder in folders if (file := folder / "prompts.jsonl").is_file()), None)


def validation_clips(run: RunFiles) -> Path | None:
    """Returns the path of the validation dataset, else of a folder `val` in or next to the training data, else None."""
    path = lookup(run.config, "dataloader_val.dataset.path")
    folders = [working_directory(run) / path] if isinstance(path, str) and path and "$" not in path else []
    folders += [folder / "val" for folder in data_folders(run)]
    return next((folder for folder in folders if folder.is_dir()), None)


def data_folders(run: RunFiles) -> list[Path]:
    """Returns the folder of the training data and its parent; empty if the config names no path."""
    data = lookup(run.config, "dataloader_train.dataset.path")
    folder = working_directory(run) / str(data)
    return [folder, folder.parent] if data else []


def working_directory(run: RunFiles) -> Path:
    return Path(str(run.launch.get("working_directory") or "."))


def find_evaluation_data(run: RunFiles) -> tuple[str | None, Any]:
    """Returns (dataset class, path) of the validation data; without it, (dataset class of the training data, None).

    Both are None if the config names no dataset class.
    """
    kind, path = (lookup(run.config, f"dataloader_val.dataset.{name}") for name in ("type", "path"))
    if not kind or not path:
        kind, path = lookup(run.config, "dataloader_train.dataset.type"), None
    return (kind.rpartition(".")[2], path) if isinstance(kind, str) else (None, None)
