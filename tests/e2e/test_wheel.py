"""The wheel that the README builds holds the whole package, and works where nothing else of the clone is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(BLOCK,) = re.findall(r"^```shell\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
INSTALL, USE = BLOCK.split("~/worldsmith/bin/worldsmith", 1)
USE = f"~/worldsmith/bin/worldsmith{USE}"


def shell(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a home of its own, without a network, with the build tools of this environment."""
    environment = {
        "PATH": f"{folder / 'programs'}:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # to pip this means: without isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder / "clone", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in whose `home` the README has installed the wheel; what it depends on is that of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("programs", "home", "clone"):
        (folder / name).mkdir()
    (folder / "programs/python3.11").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "programs/python3.11").chmod(0o755)
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, folder / "clone")
    shutil.copytree(ROOT / "src", folder / "clone/src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    environment, build, install = INSTALL.splitlines()
    shell(folder, environment)
    site = next((folder / "home/worldsmith/lib").glob("python*/site-packages"))
    for path in site.glob("setuptools*"):  # older than the one that builds the wheel
        shutil.rmtree(path)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not (site / path.name).exists() and "worldsmith" not in path.name.lower():
            (site / path.name).symlink_to(path)
    shell(folder, f"{build}\n{install}")
    shutil.rmtree(folder / "clone/src")
    return folder


def test_the_wheel_holds_every_file_of_the_package(installed: Path) -> None:
    (wheel,) = (installed / "clone/dist").glob("worldsmith-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = [path.relative_to(ROOT / "src") for path in (ROOT / "src/worldsmith").rglob("*") if path.is_file()]
    assert names == {path.as_posix() for path in tracked if "__pycache__" not in path.parts}
    assert {"worldsmith/py.typed", "worldsmith/assets/tiny_vae/config.json", "worldsmith/families/recipes.py"} <= names


def test_recipes_assets_data_and_a_dry_run_work_from_it(installed: Path) -> None:
    """The README's own commands, on two clips, planned and not trained."""
    assert "moving_shapes" in shell(installed, "~/worldsmith/bin/worldsmith recipes").stdout
    making, training = USE.splitlines()[:2]
    script = f"{making} --clips 2 --val-clips 0\n{training}".replace(" -- ", " --dryrun -- ")
    assert script.count("--dryrun") == 1
    planned = shell(installed, script).stdout
    assert "\nrun          60 steps" in planned
    assert "moving-shapes: 2 train" in planned
    where = "import worldsmith; print(worldsmith.__file__)"
    found = shell(installed, f"~/worldsmith/bin/python -c '{where}'").stdout
    assert found.startswith(os.path.realpath(installed / "home"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commands_of_the_readme_train_as_they_stand(installed: Path) -> None:
    shutil.rmtree(installed / "clone/my_shapes", ignore_errors=True)
    assert "done: 60 steps" in shell(installed, USE).stdout
    assert list((installed / "clone/my_videos").glob("*/vision.mp4"))
