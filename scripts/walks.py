"""Traces the call paths of `docs/architecture.md` in real calls of the tiny variants, and prints their files.

    python scripts/walks.py [--json]

A walk names the functions in which a value arrives, such as the decoder of a clip and the loss. Its files are those on
the call stack at the first arrival in each; of every file the outermost function is printed. A file that is only used
on the way, such as one that formats text, has returned by then and does not count. `tests/e2e/test_walks.py` holds the
limits.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import worldsmith
from worldsmith.cli.main import main

PACKAGE = Path(worldsmith.__file__).parent
RUN = "outputs/train/worldsmith/sft/vision_sft_tiny"
TOML = """\
[job]
task = "vfm"
experiment = "vision_sft_tiny"
[trainer]
max_iter = 2
[checkpoint]
save_iter = 2
[dataloader_train]
num_workers = 0
"""


@dataclass(frozen=True, slots=True)
class Walk:
    """The call path of a value.

    Attributes:
        arguments: Arguments of the `worldsmith` command that is traced.
        starts: Functions in which the path begins, as `module:name`; their callers do not count.
        arrivals: Functions in which the call stack is read.
        arguments_of: Arguments that an arrival must have, by its name.
    """

    arguments: Sequence[str]
    starts: Sequence[str]
    arrivals: Sequence[str]
    arguments_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


WALKS = {
    "A clip becomes a loss": Walk(
        ("train", "--sft-toml", "run.toml"),
        ("data.stream.loader:PackingDataLoader.__iter__", "training.step:forward_backward"),
        (
            "data.clips.clip_frames:read_frames",
            "models.video_vae.wan:WanVAE.encode",
            "families.cosmos3.network.network:Cosmos3Network.forward",
            "objectives.rectified_flow:RectifiedFlow.add_up",
        ),
    ),
    "A value in a TOML becomes a field": Walk(
        ("config", "check", "run.toml"),
        ("cli.run_source:load_run",),
        (
            "config.toml.toml_schema:remap",
            "config.declare.configurable:Config.__setattr__",
            "config.tree.references:_Resolver.value",
            "config.tree.checks:check_sections",
        ),
        {"config.declare.configurable:Config.__setattr__": {"name": "max_iter", "value": 2}},
    ),
    "Arguments become a video": Walk(
        ("generate", "pipeline", "--prompt", "A red circle moves to the left.", "-o", "videos", "--steps", "2"),
        ("cli.main:main",),
        (
            "checkpoint.formats.stored_model:StoredModel.load",
            "families.cosmos3.network.network:Cosmos3Network.forward",
            "sampling.write_media:write_mp4",
        ),
    ),
    "A checkpoint becomes an export": Walk(
        ("export", RUN, "--dtype", "float32", "-o", "pipeline"),
        ("cli.main:main",),
        (
            "checkpoint.dcp.tensor_reader:load_part",
            "families.cosmos3.weights.formats:build_pipeline",
            "files.atomic:publish_folder",
        ),
    ),
}


class Tracer:
    """A profile function that keeps the call stack of the first arrival in each function of a walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.stacks: dict[str, list[str]] = {}
        self.names = {arrival.rpartition(":")[2].rpartition(".")[2] for arrival in walk.arrivals}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name not in self.names or not code.co_filename.startswith(str(PACKAGE)):
            return
        name, walk = function_name(frame), self.walk
        if name not in walk.arrivals or name in self.stacks:
            return
        if any(frame.f_locals.get(key) != value for key, value in walk.arguments_of.get(name, {}).items()):
            return
        stack = list(call_stack(frame))[::-1]
        start = next((index for index, caller in enumerate(stack) if caller in walk.starts), None)
        if start is not None:
            self.stacks[name] = stack[start:]

    def files(self) -> dict[str, str]:
        """The first function in each file on the path, by module, in the order of the path."""
        found: dict[str, str] = {}
        for arrival in self.walk.arrivals:
            for name in self.stacks[arrival]:
                module, _, function = name.partition(":")
                found.setdefault(module, function.split(".<locals>")[0])
        return found


def function_name(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("")
    return f"{'.'.join(path.parts)}:{frame.f_code.co_qualname}"


def call_stack(frame: FrameType | None) -> Iterator[str]:
    """The functions of the package that are being called, innermost first."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            yield function_name(frame)
        frame = frame.f_back


@contextmanager
def profiled(tracer: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    sys.setprofile(tracer)
    try:
        yield
    finally:
        sys.setprofile(None)


def run(*arguments: str) -> None:
    code = main(list(arguments))
    if code:
        raise RuntimeError(f"worldsmith {' '.join(arguments)}: exit code {code}")


def trace_walks() -> dict[str, dict[str, str]]:
    """Traces all walks in the current folder; returns the files of each, with their first functions."""
    run("dataset", "moving-shapes", "shapes", "--clips", "4", "--val-clips", "0", "--num-frames", "5")
    os.environ["DATASET_PATH"] = "shapes"
    Path("run.toml").write_text(TOML, encoding="utf-8")
    order = ("A value in a TOML becomes a field", "A clip becomes a loss", "A checkpoint becomes an export",
             "Arguments become a video")  # fmt: skip
    found = {}
    for title in order:
        tracer = Tracer(WALKS[title])
        with profiled(tracer):
            run(*WALKS[title].arguments)
        found[title] = tracer.files()
    return {title: found[title] for title in WALKS}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        traced = trace_walks()
    walks = {title: [f"{module}:{name}" for module, name in walk.items()] for title, walk in traced.items()}
    if "--json" in sys.argv:
        print(json.dumps(walks))
    else:
        for title, functions in walks.items():
            print(f"\n{title}: {len(functions)} files")
            for number, function in enumerate(functions, start=1):
                print(f"  {number:2} {function}")
