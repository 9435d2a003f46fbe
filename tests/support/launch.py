"""Runs a script on several gloo ranks of this machine, forked from one process that has imported everything once.

The script ends with `sys.exit(fork_ranks(function))`, and a test calls `launch(script, ranks, arguments)`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path


def launch(script: Path, ranks: int, arguments: list[str], *, timeout: float = 280) -> None:
    """Raises RuntimeError with what the ranks said when one of them fails."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **meeting_point(ranks)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout,
    )
    if process.returncode:
        raise RuntimeError(f"a rank failed:\n{process.stderr}")


def meeting_point(ranks: int) -> dict[str, str]:
    """What torchrun tells all ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@contextlib.contextmanager
def without_inductor() -> Iterator[None]:
    """Compiles by `aot_eager`: the graphs of torch.compile with their recomputation, without generated code."""
    import torch

    compile_ = torch.compile
    torch.compile = functools.partial(compile_, backend="aot_eager")  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_


def fork_ranks(function: Callable[[], None]) -> int:
    """Calls `function` in a fork for each of WORLD_SIZE ranks.

    Returns the first exit code that is not 0, negative for a signal; the others are killed then, as a launcher would.
    """
    gc.freeze()  # no rank looks for garbage in what it shares with the others
    gc.enable()
    children = set()
    for rank in range(int(os.environ["WORLD_SIZE"])):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.add(child)
    result = 0
    while children:
        child, status = os.wait()
        if child not in children:  # of a rank that has ended
            continue
        children.discard(child)
        code = os.waitstatus_to_exitcode(status)
        if code and not result:
            result = code
            for other in children:
                os.kill(other, signal.SIGKILL)
    return result
