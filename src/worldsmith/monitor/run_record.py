"""`launch_info.yaml` and `job_env.yaml`: how a run was started, and its machine and software."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from worldsmith.files.atomic import write_text
from worldsmith.monitor.redaction import redact_arguments, redact_environment, redact_setting, redact_urls

PACKAGES = (
    "worldsmith", "torch", "numpy", "safetensors", "av", "pillow", "transformers", "diffusers", "accelerate", "peft",
    "tensorboard", "datasets", "wandb",
)  # fmt: skip
DISTRIBUTED_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def write_run_record(
    folder: Path,
    *,
    command: Sequence[str],
    config_path: str | None,
    overrides: Sequence[str],
    world_size: int = 1,
    seed: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Writes `launch_info.yaml` and `job_env.yaml` into the run folder; secrets are redacted.

    Records of earlier launches are kept under `earlier_launches`.

    Args:
        folder: Run folder, which is created if it does not exist.
        command: Command line, as a list of arguments.
        config_path: Path of the config file; None without one.
        overrides: Overrides on the command line, such as "trainer.max_iter=100".
        world_size: Number of ranks.
        seed: Seed of the run; None if it has none.
        environment: Environment variables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    launch_path = folder / "launch_info.yaml"
    launch: dict[str, Any] = {
        "cmd": shlex.join(redact_arguments(command)),
        "args_cfg_path": config_path,
        "args_override": redact_arguments(overrides),
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "working_directory": str(Path.cwd()),
    }
    earlier = earlier_launches(launch_path)
    if earlier:
        launch["earlier_launches"] = earlier
    write_yaml(launch_path, launch)
    write_yaml(folder / "job_env.yaml", describe_environment(world_size=world_size, seed=seed, environment=environment))


def write_origins(path: Path, origins: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Writes the origin of each config value as JSON; secrets are redacted.

    Args:
        path: File to write.
        origins: Path of a config value -> dict with `origin` (text), `changed` (True if the value differs from the
            recipe or default; else omitted) and `was` (value in the recipe, if it differs). None: the origins are not
            known, and an existing file is removed.
    """
    if origins is None:
        path.unlink(missing_ok=True)
        return
    plain = {
        name: {key: redact_setting(name, value) if isinstance(value, str) else value for key, value in about.items()}
        for name, about in origins.items()
    }
    write_text(path, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")


def describe_environment(*, world_size: int, seed: int | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the content of `job_env.yaml` as a dict; secrets are redacted.

    The keys are host, platform, python (version), cpu_count, world_size, seed, distributed (variables of the launcher,
    by name), packages (versions by name), torch, git (None without a repository) and environment (variables by name).
    """
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "cpu_count": os.cpu_count(),
        "world_size": world_size,
        "seed": seed,
        "distributed": {name: environment[name] for name in DISTRIBUTED_VARIABLES if name in environment},
        "packages": package_versions(),
        "torch": describe_torch(),
        "git": git_state(Path.cwd()),
        "environment": redact_environment(environment),
    }


def package_versions() -> dict[str, str]:
    """Returns the versions of the installed packages that can change the results of a run, by name."""
    versions = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def describe_torch() -> dict[str, Any]:
    """Returns a dict on torch: its version, CUDA version (`cuda`), GPU names (`devices`), and thread counts."""
    import torch

    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Returns the state of the git repository that contains `folder`; None if there is no repository.

    The keys are `commit` (full hash), `branch`, `remote` (URL of origin, or None) and `changed_files` (list of paths of
    tracked files).
    """
    commit = git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = git(folder, "status", "--porcelain", "--untracked-files=no") or ""
    return {
        "commit": commit,
        "branch": git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "remote": redact_urls(git(folder, "config", "--get", "remote.origin.url") or "") or None,
        "changed_files": [line.strip().split(maxsplit=1)[-1] for line in changed.splitlines()],
    }


def git(folder: Path, *arguments: str) -> str | None:
    """Runs `git` with `arguments` in `folder` and returns its output; None if it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def earlier_launches(path: Path) -> list[dict[str, Any]]:
    """Returns the launches recorded in the `launch_info.yaml` at `path` as dicts, oldest first; [] without the file.

    If the file is not valid YAML, the list has one dict: {"unreadable": text of the file}.
    """
    if not path.exists():
        return []
    try:
        launch = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        return [{"unreadable": path.read_text(encoding="utf-8", errors="replace")}]
    if not isinstance(launch, dict):
        return []
    earlier = launch.pop("earlier_launches", [])
    return [*earlier, launch]


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a YAML file atomically."""
    write_text(path, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=1000))
