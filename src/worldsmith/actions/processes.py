"""Splits work among processes of this machine, which report their progress, or among processes of a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, TypeVar, cast

from worldsmith.actions.action import Action
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, NotNegative, PositiveFactor
from worldsmith.config.errors import UserError
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.process_signals import signal_at_parents_end
from worldsmith.distributed.world import require_devices
from worldsmith.files.errors import require_libraries

logger = logging.getLogger(__name__)

T = TypeVar("T")

POOL_FLAGS = "--processes, --on and --max-failures"
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


class RayAction(Action):
    """Base class of commands that can run their work on Ray."""

    metavars: ClassVar[Mapping[str, str]] = {"on": "WHERE", "record_timeout": "SECONDS"}

    class Config(Action.Config):
        on: str = "local"
        """Where the processes run: "local", "ray" (a Ray that is started on this machine) or "ray://HOST:PORT" (the
        Ray cluster with this head; this machine must be one of its nodes)."""
        record_timeout: PositiveFactor | None = None
        """Time limit in seconds for the work that a process gets at once (a sample, a file, a batch of windows), above
        which it has failed; only with --on ray. The first time of a process includes loading the model."""

        def check(self) -> None:
            super().check()
            if self.on != "local" and not is_ray(self.on):
                raise wrong(self, "on", allowed="local, ray or ray://HOST:PORT")
            if self.record_timeout is not None and self.on == "local":
                why = "the work of a local process is not interrupted"
                raise wrong(self, "record_timeout", why=why, remedy="add --on ray")


class PoolAction(RayAction):
    """Base class of commands that divide items, such as clips, among processes of this machine or of Ray."""

    needs_gpu: ClassVar[bool] = True
    """Whether each process gets a GPU, where there are any."""

    class Config(RayAction.Config):
        processes: Count = 1
        """Number of processes that share the work, on this machine or on Ray."""
        max_failures: NotNegative = 0
        """Number of samples, clips or windows that may fail before the command ends with an error."""

        @property
        def uses_pool(self) -> bool:
            """Whether the work is done by `PoolAction.apply`, which counts the items that fail."""
            return self.processes > 1 or is_ray(self.on) or self.max_failures > 0

    config: Config

    def apply(self, make: Callable[[int], Callable[[Any], Any]], items: Sequence[Any]) -> Iterator[Any]:
        """Applies a function to items in the processes of the command; yields the results as they complete.

        Args:
            make: Called once in each process, with the number of the GPU that it uses; returns the function. Picklable.
            items: Different hashable items; they and the results are picklable.

        Yields:
            The result of the function, or a `FailedItem` if it raised an error.

        Raises:
            UserError: If the function raises UserError or DataError, or `make` raises one of these, ValueError or
                OSError.
            WorkerProcessError: If a process on this machine was killed, or if the Ray cluster fails.
        """
        config = self.config
        if is_ray(config.on):
            with connect_ray(config.on, config.processes, needs_gpu=self.needs_gpu):
                settings: Any = {"timeout": config.record_timeout, "needs_gpu": self.needs_gpu}
                yield from map_on_ray(partial(make, 0), items, config.processes, **settings)
        elif items and config.processes > 1:
            work = partial(apply_to_share, make, items)
            yield from (value for kind, _, value in run_messages(work, config.processes) if kind == "done")
        elif items:
            function = make(0)
            yield from (call_or_fail(function, item) for item in items)

    def require_few_failures(self, failed: int, done: str) -> None:
        """Raises UserError if more than `max_failures` samples have failed; `done` is a participle: "encoded"."""
        if failed > self.config.max_failures:
            raise UserError(
                f"{failed} samples cannot be {done} (see above), {self.config.max_failures} are allowed: fix the "
                "cause, or raise --max-failures; the same command continues"
            )


def call_or_fail(function: Callable[[Any], Any], item: Any) -> Any:
    """Returns `function(item)`, or a `FailedItem` if it raises an error. UserError and DataError are raised."""
    try:
        return function(item)
    except (UserError, DataError):
        raise
    except Exception as error:
        return FailedItem(item, f"{type(error).__name__}: {error}")


class WorkerProcessError(RuntimeError):
    """A worker process ended before its work was complete."""


def run_in_processes(
    work: Callable[[int, int, Callable[[int], None]], T], count: int, shown: Callable[[int], None]
) -> list[T]:
    """Runs `work` in `count` processes and returns their results in the order of the process numbers.

    If one process fails, the others are terminated; if the caller ends, all end. Processes are forked on Linux and
    spawned elsewhere.

    Args:
        work: Called as `work(number, count, report)` in process `number`; `report(done)` sends the amount of finished
            work. On platforms without fork it must be picklable, like its result.
        count: Number of processes.
        shown: Called in this process after each report with the sum of the last amounts of all processes.

    Raises:
        UserError: If `work` raises UserError, DataError, ValueError or OSError.
        WorkerProcessError: If a process was killed or ended with another error.
    """
    done, results = [0] * count, dict[int, T]()
    for kind, number, value in run_messages(work, count):
        if kind == "result":
            results[number] = value
        else:
            done[number] = value
            shown(sum(done))
    return [results[number] for number in range(count)]


def run_messages(work: Callable[[int, int, Callable[[Any], None]], Any], count: int) -> Iterator[tuple[str, int, Any]]:
    """Runs `work` in `count` processes of this machine and yields what they report; arguments as in `run_in_processes`.

    When the caller stops reading, and after an error, the processes that still run are terminated.

    Yields:
        ("done", process number, value that `work` has reported) or ("result", process number, result of `work`).

    Raises:
        UserError: If `work` raises UserError, DataError, ValueError or OSError.
        WorkerProcessError: If a process was killed or ended with another error.
    """
    # As for loader workers: Linux forks, and no thread pool has been used yet.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    running: dict[Connection, tuple[int, Any]] = {}
    processes = []
    try:
        for number in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=run_worker, args=(work, number, count, sender, os.getpid()))
            process.start()
            sender.close()
            running[receiver] = number, process
            processes.append(process)
        while running:
            for pipe in cast(list[Connection], wait(list(running))):
                number, process = running[pipe]
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    process.join()
                    code = process.exitcode
                    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                    again = "run the same command again to continue"
                    raise WorkerProcessError(f"process {number} {how}; {again}") from None
                if kind == "refused":
                    raise UserError(value)
                if kind == "result":
                    del running[pipe]
                yield kind, number, value
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def apply_to_share(
    make: Callable[[int], Callable[[Any], Any]],
    items: Sequence[Any],
    number: int,
    count: int,
    report: Callable[[Any], None],
) -> None:
    """Applies the function that `make(number)` returns to every `count`-th item, from item `number`.

    Args:
        make: As in `PoolAction.apply`.
        items: Items of all processes.
        number: Number of this process.
        count: Number of processes.
        report: Called with each result.
    """
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    function = make(number)
    for item in items[number::count]:
        report(call_or_fail(function, item))


def run_worker(work: Callable[..., Any], number: int, count: int, pipe: Connection, parent: int) -> None:
    """Runs `work` in process `number` of `count` and sends progress, then the result or an expected error, to `pipe`.

    The process exits immediately on SIGINT or SIGTERM, or when the process with the id `parent` ends.
    """
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, signal.SIG_DFL)
    signal_at_parents_end(signal.SIGTERM, parent)
    try:
        pipe.send(("result", work(number, count, lambda done: pipe.send(("done", done)))))
    except (UserError, DataError, ValueError, OSError) as error:
        pipe.send(("refused", str(error)))


@dataclass(frozen=True, slots=True)
class FailedItem:
    """Result for an item whose processing failed, instead of the result of the function."""

    item: Any
    reason: str


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
