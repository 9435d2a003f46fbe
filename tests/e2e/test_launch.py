"""`worldsmith launch`: its exit codes, whom signals reach, and that it leaves no process behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import tiny_runs
from logged_command import call

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.distributed.stop_signals import SAME_PRESS

Start = Callable[..., BaseProcess]
LAUNCH = ["launch", "--nproc-per-node", "2", "train"]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts `worldsmith` with some words, in a process that has imported torchrun already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.run"])
    started = []

    def start(*words: str, folder: Path, nohup: bool = False) -> BaseProcess:
        started.append(context.Process(target=call, args=(list(words), folder / "log", dict(os.environ), nohup)))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.kill()


def start_case(start: Start, case: str, folder: Path, *words: str, nohup: bool = False) -> BaseProcess:
    """Two processes that do what a case of launched_train does."""
    return start("--import", "launched_train", *LAUNCH, case, str(folder), *words, folder=folder, nohup=nohup)


def end(launcher: BaseProcess) -> int | None:
    launcher.join(200)
    return launcher.exitcode


def wait_for(condition: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError((folder / "log").read_text())
        time.sleep(0.05)


def ready(folder: Path, name: str = "ready") -> list[int]:
    """The processes, once all of them have got so far."""
    files = [folder / f"{name}_{rank}" for rank in (0, 1)]
    wait_for(lambda: all(file.exists() for file in files), folder)
    return [int(file.read_text() or 0) for file in files]


def stopped_by(folder: Path) -> list[str]:
    """What the processes were asked by, which they have written as their save."""
    return [(folder / f"saved_{rank}").read_text() for rank in (0, 1)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_gone(pids: list[int], folder: Path) -> None:
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), folder)


def test_a_run_that_ends_well(start: Start, tmp_path: Path) -> None:
    """The words after -- arrive as they are, in both processes."""
    assert end(start_case(start, "done", tmp_path, "--", "a=b c", "--", "-x=1")) == 0
    assert [(tmp_path / f"words_{rank}").read_text() for rank in (0, 1)] == ["a=b c -- -x=1"] * 2


@pytest.mark.parametrize("numbers", [[signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM], [signal.SIGHUP]])
def test_a_signal_is_a_stop_after_a_save(start: Start, tmp_path: Path, numbers: list[signal.Signals]) -> None:
    """Whatever comes after it, and although one process needs longer than the other."""
    launcher = start_case(start, "train", tmp_path)
    processes = ready(tmp_path)
    for number in numbers:
        os.kill(launcher.pid, number)
        time.sleep(0.1)
    assert end(launcher) == 75, (tmp_path / "log").read_text()
    assert stopped_by(tmp_path) == [numbers[0].name] * 2
    wait_until_gone(processes, tmp_path)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_terminal_that_is_closed_does_not_stop_what_nohup_has_started(start: Start, tmp_path: Path) -> None:
    launcher = start_case(start, "train", tmp_path, nohup=True)
    ready(tmp_path)
    os.kill(launcher.pid, signal.SIGHUP)
    time.sleep(0.3)
    os.kill(launcher.pid, signal.SIGTERM)
    assert end(launcher) == 75
    assert stopped_by(tmp_path) == ["SIGTERM"] * 2


def test_a_second_ctrl_c_interrupts(start: Start, tmp_path: Path) -> None:
    launcher = start_case(start, "train_long", tmp_path)
    ready(tmp_path)
    os.kill(launcher.pid, signal.SIGINT)
    ready(tmp_path, "saving")
    time.sleep(SAME_PRESS)
    os.kill(launcher.pid, signal.SIGINT)
    assert end(launcher) == 130


def test_before_the_first_step_there_is_nothing_to_save(start: Start, tmp_path: Path) -> None:
    launcher = start_case(start, "load", tmp_path)
    ready(tmp_path)
    os.kill(launcher.pid, signal.SIGTERM)
    assert end(launcher) == 75
    assert "stopped by SIGTERM with no progress to save" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_a_wait_for_another_machine(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    """Whom it waits for is said meanwhile."""
    words = ["launch", "--nnodes", "2", "--node-rank", "0", "--master-port", str(free_port()), "train", "done"]
    launcher = start("--import", "launched_train", *words, str(tmp_path), folder=tmp_path)
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and "waiting for 1 other machine" in log.read_text(), tmp_path)
    os.kill(launcher.pid, number)
    launcher.join(20)
    assert launcher.exitcode == 75
    assert log.read_text().endswith(f"stopped by {number.name} with no progress to save\n")


def test_a_stop_ends_a_wait_for_another_process(start: Start, tmp_path: Path) -> None:
    launcher = start_case(start, "meet", tmp_path)
    processes = ready(tmp_path)
    time.sleep(2)
    os.kill(launcher.pid, signal.SIGTERM)
    launcher.join(20)
    assert launcher.exitcode == 75
    wait_until_gone(processes, tmp_path)


def test_no_process_outlives_a_launcher_that_is_killed_while_it_starts_them(start: Start, tmp_path: Path) -> None:
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        launcher = psutil.Process(start_case(start, "train", folder).pid)
        wait_for(lambda launcher=launcher: len(launcher.children()) == 2, folder)
        processes = [process.pid for process in launcher.children()]
        time.sleep(0.03 * attempt)
        launcher.kill()
        wait_until_gone(processes, folder)


def test_a_temporary_folder_that_is_gone_changes_no_exit_code(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left there either."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    launcher = start_case(start, "train", tmp_path)
    ready(tmp_path)
    (tmp_path / "temporary").rmdir()
    os.kill(launcher.pid, signal.SIGTERM)
    assert end(launcher) == 75, (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "meeting", [[], pytest.param(["--rdzv-backend", "static", "--master-port"], marks=pytest.mark.slow)]
)
def test_restarts_meet_anew(start: Start, tmp_path: Path, meeting: list[str]) -> None:
    meeting = [*meeting, str(free_port())] if meeting else []
    words = ["launch", *meeting, "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"]
    launcher = start("--import", "launched_train", *words, "train", "fail_once", str(tmp_path), folder=tmp_path)
    assert end(launcher) == 0, (tmp_path / "log").read_text()
    assert [(tmp_path / f"tries_{rank}").read_text() for rank in (0, 1)] == ["1", "1"]


@pytest.mark.parametrize("words", [["train", "toy"], ["launch", "train", "toy"], ["export", "nowhere", "-o", "x"]])
def test_ctrl_c_in_the_first_seconds_is_one_line(words: list[str], tmp_path: Path) -> None:
    """In whatever it comes. While the interpreter itself starts, only Python can answer: such a try does not count."""
    environment = {
        **os.environ,
        "TOY_ROWS": str(tmp_path / "none"),
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
    }
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    seen = set()
    for after in (0.2, 0.4, 0.8, 1.2, 1.6):
        command = [sys.executable, "-m", "worldsmith", "--import", "toy_family", *words]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        if process.returncode == -signal.SIGINT and "__main__.py" not in said:
            continue
        assert process.returncode in (75, 130, 2), said
        assert "Traceback" not in said
        assert process.returncode == 2 or said.count("\n") <= 1
        seen.add(process.returncode)
    assert seen


@pytest.mark.parametrize(
    ("case", "code", "said"),
    [("mistake", 2, "worldsmith: error: the folder is wrong"), ("memory", 1, "rank 1 was ended by SIGKILL")],
)
def test_one_process_that_fails_ends_the_run(start: Start, tmp_path: Path, case: str, code: int, said: str) -> None:
    assert end(start_case(start, case, tmp_path)) == code
    log = (tmp_path / "log").read_text()
    assert said in log
    assert "Traceback" not in log


@pytest.mark.parametrize("words", [["misspelt"], ["done", "--flag"]])
def test_a_mistake_in_the_config_is_said_once(start: Start, tmp_path: Path, words: list[str]) -> None:
    """Before there are processes."""
    assert end(start_case(start, words[0], tmp_path, *words[1:])) == 2
    log = (tmp_path / "log").read_text()
    assert log.count("what is misspelt?") + log.count("unrecognized arguments: --flag") == 1
    assert not list(tmp_path.glob("words_*"))


def test_a_port_that_is_in_use_is_named_with_what_to_do(start: Start, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        words = ["launch", "--nproc-per-node", "2", "--master-port", port, "train", "done", str(tmp_path)]
        assert end(start("--import", "launched_train", *words, folder=tmp_path)) == 2
    log = (tmp_path / "log").read_text()
    assert f"port {port} is in use on this machine" in log
    assert "--master-port" in log
    assert "Traceback" not in log


def test_processes_whose_launcher_is_killed_save_and_end(start: Start, tmp_path: Path) -> None:
    launcher = start_case(start, "train", tmp_path)
    processes = ready(tmp_path)
    launcher.kill()
    wait_until_gone(processes, tmp_path)
    assert stopped_by(tmp_path) == ["SIGTERM"] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "x"], "worldsmith launch starts `train` or `encode` or `generate` or `evaluate`, not 'export'"),
        (["--nproc-per-node", "many", "train"], "--nproc-per-node many: Unsupported"),
        (["--nnodes", "many", "train", "--dryrun"], "--nnodes many --nproc-per-node 1: invalid literal"),
        (["--signals-to-handle", "SIGTERM", "train"], "--signals-to-handle is set by the command itself"),
        (["-m", "train"], "--module is set by the command itself"),
        (["--slurm", "--node-rank", "1", "train", "toy"], "the script sets --node-rank; omit it"),
        (["--slurm", "--nnodes", "1:4", "train", "toy"], "--nnodes must be one number, found 1:4"),
        (["--slurm", "--nproc-per-node", "gpu", "train", "toy"], "also needs --gpus-per-node N"),
        (["--slurm", "train", "toy"], "`sbatch` is not on this machine"),
        (["--slurm", "train", "toy", "--dryrun"], "--slurm cannot be combined with --dryrun, --rehearse or --help"),
    ],
)
def test_words_that_cannot_work(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_ROWS", "rows.txt")
    assert main(["--import", "toy_family", "launch", *words]) == 2
    assert said in capfd.readouterr().err


def test_help_needs_no_torch() -> None:
    program = (
        "import sys; from worldsmith.cli.main import main; code = main(['launch', '--help']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert "75 asked to stop and saved" in subprocess.check_output([sys.executable, "-c", program], text=True)


class Run:
    """A tiny run of two processes with loader workers, which would take far longer than a test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder
        monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(folder / "runs"))
        config = tiny_runs.tiny_config(tiny_runs.make_world(folder / "world"), steps=100_000, workers=1)
        config.checkpoint.save_iter = 100_000
        (folder / "run.yaml").write_text(to_yaml(config))
        self.words = ["train", "--base", str(folder / "run.yaml")]
        self.folder = folder / "runs/tests/tiny/run"

    def steps(self) -> list[int]:
        """The steps that are logged."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def saved(self) -> int:
        """The step of the newest checkpoint."""
        return int((self.folder / "checkpoints/latest_checkpoint.txt").read_text().strip().removeprefix("iter_"))

    def trained(self, launcher: int) -> list[int]:
        """All processes, after two more steps than there were."""
        goal = len(self.steps()) + 2
        wait_for(lambda: len(self.steps()) >= goal, self.log)
        return [process.pid for process in psutil.Process(launcher).children(recursive=True)]


@pytest.mark.slow
def test_a_real_run_outlives_its_launcher(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the meeting point of the processes is gone then, and they have a save to do."""
    run = Run(tmp_path, monkeypatch)
    launcher = start("launch", "--nproc-per-node", "2", *run.words, folder=tmp_path)
    processes = run.trained(launcher.pid)
    assert len(processes) >= 4  # two ranks, each with a worker at least
    launcher.kill()
    wait_until_gone(processes, tmp_path)
    assert run.steps() == list(range(1, run.saved() + 1))
    logs = [(run.folder / f"logs/rank_0000{rank}.log").read_text() for rank in range(2)]
    assert [f"rank {rank} of 2\n" in log for rank, log in enumerate(logs)] == [True, True]
    assert f"stopped and saved after step {run.saved()} (SIGTERM)" in logs[0]


@pytest.mark.slow
def test_the_partner_of_a_rank_that_is_killed_says_so_in_one_line(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)
    launcher = start("launch", "--nproc-per-node", "2", *run.words, folder=tmp_path)
    processes = run.trained(launcher.pid)
    next(p for p in psutil.Process(launcher.pid).children() if p.environ().get("RANK") == "1").kill()
    assert end(launcher) == 1
    wait_until_gone(processes, tmp_path)
    log = (tmp_path / "log").read_text()
    assert (
        log.count("error: [E111] another process of the run at 127.0.0.1 has ended or cannot be reached, so this one")
        == 1
    )
    assert "rank 1 was ended by SIGKILL; it was the first to fail" in log
    assert "Traceback" not in log


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_runs_stop_and_go_on(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a scheduler's signals, the stop file, and plain torchrun, which signals loader workers too: all is saved."""
    run = Run(tmp_path, monkeypatch)
    launch = ("launch", "--nproc-per-node", "2", *run.words)
    assert end(start(*launch, "--", "optimizer.lr=fast", folder=tmp_path)) == 2
    launcher = start(*launch, folder=tmp_path)
    processes = run.trained(launcher.pid)
    os.kill(launcher.pid, signal.SIGUSR1)
    os.kill(launcher.pid, signal.SIGTERM)
    assert end(launcher) == 75, (tmp_path / "log").read_text()
    wait_until_gone(processes, tmp_path)
    steps = [run.saved()]

    launcher = start(*launch, folder=tmp_path)
    run.trained(launcher.pid)
    (run.folder / "STOP").touch()
    assert end(launcher) == 75, (tmp_path / "log").read_text()
    steps.append(run.saved())
    assert end(start(*launch, "--", "optimizer.lr=0.5", folder=tmp_path)) == 2
    assert end(start(*launch, "--", "optimizer.lrr=0.5", folder=tmp_path)) == 2
    assert (tmp_path / "log").read_text().count("did you mean 'optimizer.lr'?") == 1

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        with (tmp_path / "log").open("a") as log:
            torchrun = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "worldsmith", *run.words],
                stdout=log, stderr=log,
            )  # fmt: skip
        processes = run.trained(torchrun.pid)
        torchrun.send_signal(number)
        assert torchrun.wait() != 0
        wait_until_gone(processes, tmp_path)
        steps.append(run.saved())
    assert steps == sorted(set(steps))
    assert run.steps() == list(range(1, steps[-1] + 1))
