"""Splits work among processes of Ray, on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from worldsmith.actions.processes import FailedItem, call_or_fail
from worldsmith.config.errors import UserError
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.world import require_devices
from worldsmith.files.errors import WorkerProcessError, require_libraries

logger = logging.getLogger(__name__)

T = TypeVar("T")

RAY = "ray"
"""Name of a Ray that is started on this machine; followed by "://" and an address: a running Ray cluster."""
RAY_BLOCK = 16
"""Max number of items that Ray sends to a process at once, whose results come back together."""
RAY_ATTEMPTS = 3
"""Number of processes that may end while they process an item; the item is then a `FailedItem`."""
OBJECT_STORE_BYTES = 200 << 20
"""Shared memory of a Ray that is started on this machine. It contains items and results, which are small."""
CONNECT_SECONDS = 10.0
"""Time limit for the first connection to a Ray cluster; Ray itself tries for minutes."""


class TimeLimitError(Exception):
    """An item was not processed within the time limit."""


def is_ray(name: str) -> bool:
    """Returns whether `name` is "ray" or "ray://ADDRESS", as `connect_ray` accepts it."""
    return name == RAY or (name.startswith(f"{RAY}://") and name != f"{RAY}://")


@contextmanager
def connect_ray(name: str, count: int, *, needs_gpu: bool = True) -> Iterator[None]:
    """Context manager: starts Ray on this machine, or connects to a Ray cluster, and finally disconnects or stops it.

    If this program has already started or connected Ray, that Ray is used and stays.

    Args:
        name: "ray": start Ray on this machine; "ray://HOST:PORT": address of the head of a cluster that contains this
            machine; "ray://auto": the cluster of this machine.
        count: Number of processes that are needed.
        needs_gpu: Whether each process needs a GPU, where there are any.

    Raises:
        UserError: If Ray is not installed, or cannot be started or reached.
        ValueError: If Ray is started on this machine and the machine has GPUs, but fewer than `count`.
    """
    require_libraries(f"--on {name}", "ray", "ray", "pandas", "pyarrow")
    address = name.removeprefix(RAY).removeprefix("://")
    # Before the import: no usage statistics, and no messages of the C++ part about restarts, which we report.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    if ray.is_initialized():
        yield
        return
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if not address:
        require_devices(count if needs_gpu else 0)
        settings |= {"address": "local", "num_cpus": count, "object_store_memory": OBJECT_STORE_BYTES}
        settings["include_dashboard"] = False
    hint = "HOST:PORT is the address of the head of the cluster, with port 6379 by default (not that of the Ray client)"
    try:
        host, _, port = address.rpartition(":")
        if host:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(**settings)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        what = f"the Ray cluster {address} cannot be reached" if address else "Ray cannot be started on this machine"
        advice = f". {hint}; this machine must be one of its nodes (`ray start --address={address}`)" if host else ""
        if host and "RAY_AUTH_MODE" not in os.environ:
            advice += ". If `ray start` has printed that token authentication is enabled, set RAY_AUTH_MODE=token"
        raise UserError(f"--on {name}: {what}: {str(error).strip().rstrip('.')}{advice}") from error
    try:
        yield
    finally:
        ray.shutdown()


def map_on_ray(
    make: Callable[[], Callable[[Any], Any]],
    items: Sequence[Any],
    count: int,
    *,
    timeout: float | None = None,
    needs_gpu: bool = True,
) -> Iterator[Any]:
    """Applies a function to items in `count` processes of the connected Ray; yields the results as they complete.

    Each process gets one CPU and, if `needs_gpu` and the cluster has GPUs, one GPU. A process that ends is replaced,
    and its items are processed again, so the function must be idempotent. An item with which `RAY_ATTEMPTS` processes
    have ended, and an item for which the function raises an error, has a `FailedItem` as result.

    Args:
        make: Called once in each process, before its first item; returns the function. Picklable, like items, results
            and the errors of the function.
        items: Different hashable items.
        count: Number of processes. If the cluster has room for fewer processes, fewer run.
        timeout: Time limit of an item in seconds; None: no limit. Later items of the process get a new function from
            `make`, because the thread with the old one cannot be ended.
        needs_gpu: Whether each process needs a GPU, if the cluster has any.

    Raises:
        UserError: If the function raises UserError or DataError, or `make` raises one of these, ValueError or OSError.
        WorkerProcessError: If `make` raises another error, or if the cluster fails.
    """
    if not items:
        return
    import ray
    from ray import cloudpickle
    from ray.data import ActorPoolStrategy, DataContext, from_items

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised
    DataContext.get_current().enable_progress_bars = False
    resources = ray.cluster_resources()
    gpus = resources.get("GPU", 0.0) if needs_gpu else 0.0
    if (room := int(gpus or resources.get("CPU", 0.0))) < count:
        logger.warning("%d processes need one %s each, the Ray cluster has %d", count, "GPU" if gpus else "CPU", room)
    blocks = min(len(items), max(4 * count, -(-len(items) // RAY_BLOCK)))
    # The processes retry without limit, and this actor survives them.
    started = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(StartedItems).remote()
    rows = from_items([{"item": pickle.dumps(item)} for item in items], override_num_blocks=blocks).map(
        RayProcess,  # type: ignore[arg-type]  # Ray constructs it in its actors
        fn_constructor_args=(cloudpickle.dumps(make), started, timeout, os.getcwd(), sys.path),
        compute=ActorPoolStrategy(size=min(count, blocks), max_tasks_in_flight_per_actor=2),
        num_cpus=1,
        num_gpus=1 if gpus else None,
    )
    try:
        for row in rows.iter_rows():
            kind, value = pickle.loads(row["result"])
            if kind == "refused":
                raise UserError(value)
            if kind == "broken":
                raise WorkerProcessError(f"a process on Ray ended with an error:\n{value}")
            yield value
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkerProcessError(f"Ray failed: {lines[-1]}; run the same command again to continue") from error


class StartedItems:
    """Actor that counts how often each unfinished item was started: more than once if processes ended with it."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()

    def start(self, item: bytes) -> int:
        """Counts a start of the item and returns the number of its starts."""
        self.counts[item] += 1
        return self.counts[item]

    def finish(self, item: bytes) -> None:
        """Forgets an item."""
        self.counts.pop(item, None)


class RayProcess:
    """Process on Ray that applies a function to rows of `map_on_ray`. It raises no error, which would end the others.

    Args:
        make: As in `map_on_ray`, pickled, since its modules may be found only in `paths`.
        started: Handle of the actor `StartedItems`.
        timeout: Time limit of an item in seconds; None: no limit.
        folder: Working directory, so that relative paths mean the same in all processes.
        paths: Folders of modules.
    """

    def __init__(self, make: bytes, started: Any, timeout: float | None, folder: str, paths: list[str]) -> None:
        self.make, self.started, self.timeout = make, started, timeout
        self.folder, self.paths = folder, paths
        self.function: Callable[[Any], Any] | None = None

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        """Processes a row, {"item": pickled item}; returns {"result": pickled result of `process`}."""
        import ray

        attempt = ray.get(self.started.start.remote(row["item"]))
        result = self.process(row["item"], is_deadly=attempt > RAY_ATTEMPTS)
        self.started.finish.remote(row["item"])
        return {"result": pickle.dumps(result)}

    def process(self, packed: bytes, *, is_deadly: bool) -> tuple[str, Any]:
        """Processes a pickled item, or not if `is_deadly`: `RAY_ATTEMPTS` processes have ended with it.

        Returns:
            ("result", result of the function or `FailedItem`), ("refused", message of a mistake of the user) or
            ("broken", traceback of another error of `make`).
        """
        try:
            self.enter_folder()
            item = pickle.loads(packed)
            if is_deadly:
                return "result", FailedItem(item, f"{RAY_ATTEMPTS} processes ended while they processed it")
            if self.function is None:
                self.function = pickle.loads(self.make)()
        except (UserError, DataError, ValueError, OSError) as error:
            return "refused", str(error)
        except Exception:
            return "broken", traceback.format_exc()
        try:
            return "result", call_within(self.timeout, partial(call_or_fail, self.function), item)
        except (UserError, DataError) as error:
            return "refused", str(error)
        except TimeLimitError as error:
            self.function = None
            return "result", FailedItem(item, str(error))

    def enter_folder(self) -> None:
        """Changes to the working directory and makes the modules importable, unless this has been done."""
        sys.path += [path for path in self.paths if path not in sys.path]
        try:
            os.chdir(self.folder)
        except OSError as error:
            where = f"on the Ray node {socket.gethostname()}"
            raise UserError(f"the working directory {self.folder} is not available {where}: share it") from error


def call_within(timeout: float | None, function: Callable[[Any], T], item: Any) -> T:
    """Returns `function(item)`, or raises its error. With a time limit, it runs in a thread, which is left running.

    Args:
        timeout: Time limit in seconds; None: no limit.
        function: Function.
        item: Its argument.

    Raises:
        TimeLimitError: If the time limit is exceeded.
    """
    if timeout is None:
        return function(item)
    answers: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, function(item)))
        except BaseException as error:  # is raised in the thread that waits
            answers.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        is_result, value = answers.get(timeout=timeout)
    except Empty:
        raise TimeLimitError(f"it took longer than {timeout:g} s") from None
    if not is_result:
        raise value
    return value  # type: ignore[no-any-return]
