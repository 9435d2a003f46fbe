"""The rooms of the package are as `docs/architecture.md` shows them, and small enough to be read."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "worldsmith"
FILES = sorted(PACKAGE.rglob("*.py"))
FAMILY_FOLDERS = ("families/", "models/video_vae/")


LIMITS = {
    "code_lines": 61_635,
    "core_code_lines": 33_720,
    "longest_file": 325,
    "import_percent": 8.9,
    "single_importer_files": 54,
    "names_defined_three_times": 5,
    "import_circles": 0,
}
"""What `scripts/house.py` may find. Lower a limit when the package gets better; raise none."""


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def draw_rooms() -> ModuleType:
    return load_script("draw_rooms")


def test_the_structure_stays_within_its_limits() -> None:
    found = load_script("house").measure(PACKAGE)
    above = {name: getattr(found, name) for name, limit in LIMITS.items() if getattr(found, name) > limit}
    assert above == {}, f"above {LIMITS}"
    assert 120 <= found.median_lines <= 190


def test_import_circles_are_found() -> None:
    house = load_script("house")
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}, "g": set()}
    assert house.find_circles(imports) == [{"a", "b", "c"}, {"d", "e"}]


def test_the_picture_shows_the_imports(draw_rooms: ModuleType) -> None:
    committed = (ROOT / "docs" / "images" / "rooms.svg").read_text(encoding="utf-8")
    assert draw_rooms.draw(draw_rooms.find_uses()) == committed, "run python scripts/draw_rooms.py"


def test_every_room_is_in_the_picture(draw_rooms: ModuleType) -> None:
    rooms = {file.relative_to(PACKAGE).parts[0] for file in FILES if file.parent != PACKAGE}
    assert rooms - {"assets"} == set(draw_rooms.SUBJECTS)


def test_rooms_that_use_each_other_in_a_circle_are_refused(draw_rooms: ModuleType) -> None:
    with pytest.raises(ValueError, match="circle: data, models"):
        draw_rooms.floors({"config": set(), "data": {"models"}, "models": {"data", "config"}})


def test_folders_are_small() -> None:
    folder, count = Counter(file.parent for file in FILES).most_common(1)[0]
    assert count <= 16, folder


def test_a_class_name_occurs_once() -> None:
    """A search for the name of a class finds one class; each model family has its `NetworkConfig`."""
    classes = Counter(
        node.name
        for file in FILES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == ["NetworkConfig"]


def test_a_family_is_named_in_its_folder_only() -> None:
    named = [
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        if re.search(r"cosmos3|Cosmos3|Wan(VAE|2)|vision_language|VisionLanguage", file.read_text(encoding="utf-8"))
    ]
    assert [name for name in named if not name.startswith(FAMILY_FOLDERS)] == []


def test_no_text_leads_from_config_to_a_room_above() -> None:
    """import-linter sees statements only; a name in a string would be imported at run time."""
    rooms = {file.relative_to(PACKAGE).parts[0] for file in FILES if file.parent != PACKAGE} - {
        "config",
        "files",
        "assets",
    }
    above = re.compile(rf"worldsmith\.({'|'.join(sorted(rooms))})\b(\.\w+)*")
    named = [
        (file.relative_to(PACKAGE).as_posix(), node.value)
        for file in sorted((PACKAGE / "config").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and above.fullmatch(node.value)
    ]
    assert named == [  # the names of entry point groups
        ("config/dialects.py", "worldsmith.dialects"),
        ("config/recipes/packages.py", "worldsmith.families"),
    ]


def test_a_module_that_defines_a_config_imports_neither_torch_nor_transformers() -> None:
    """Every mistake in a config and every help text is said before they are needed."""
    config = re.compile(r"^    class Config\(|^class \w+\((Configurable\.)?Config\):", re.MULTILINE)
    files = [file for file in FILES if config.search(file.read_text(encoding="utf-8"))]
    modules = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files]
    assert len(modules) > 40
    code = (
        f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules), name"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
