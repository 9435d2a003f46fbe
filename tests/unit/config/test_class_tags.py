"""Class names in text: which packages they may name, and that a failing import says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worldsmith.config.declare import class_tags
from worldsmith.config.declare.class_tags import class_of, tag_of, trust, trusted_packages
from worldsmith.config.sections import JobConfig


@pytest.fixture(autouse=True)
def fresh_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_tags, "_TRUSTED", {"worldsmith"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "package_for_class_tags"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from worldsmith.config import Config\nclass Own(Config): ...\n")
    (tmp_path / name / "broken.py").write_text("raise RuntimeError('half installed')\n")
    (tmp_path / name / "leaves.py").write_text("raise SystemExit('half installed')\n")
    (tmp_path / name / "needs.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_a_package_has_to_be_trusted_before_it_is_imported(package: str) -> None:
    with pytest.raises(ValueError, match=rf"outside the trusted packages \(worldsmith\).*--trust {package}"):
        class_of(f"{package}.Own")
    assert package not in sys.modules
    trust(package)
    assert trusted_packages() == [package, "worldsmith"]
    assert class_of(f"{package}.Own").__name__ == "Own"


def test_trust_takes_the_top_level_package_of_a_dotted_name(package: str) -> None:
    trust(f"{package}.models.video")
    assert package in trusted_packages()


@pytest.mark.parametrize("name", ["os", "subprocess", "builtins", "importlib.util", "sys"])
def test_the_standard_library_cannot_be_trusted(name: str) -> None:
    with pytest.raises(ValueError, match="which --trust does not accept"):
        trust(name)
    with pytest.raises(ValueError, match="Python's standard library cannot be trusted"):
        class_of(f"{name}.Thing")
    assert trusted_packages() == ["worldsmith"]


@pytest.mark.parametrize("name", ["", "a b", "./folder", "a..b", "3x", "a.b/c"])
def test_text_that_is_no_package_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a package name"):
        trust(name)


def test_an_import_that_fails_says_why(package: str) -> None:
    trust(package)
    with pytest.raises(ValueError, match="RuntimeError: half installed"):
        class_of(f"{package}.broken.X")
    with pytest.raises(ValueError, match=r"importing .*\.leaves failed: SystemExit: half installed"):
        class_of(f"{package}.leaves.X")
    with pytest.raises(ValueError, match="no_such_package_anywhere"):
        class_of(f"{package}.needs.X")
    with pytest.raises(ValueError, match="has no 'nothing'"):
        class_of(f"{package}.nothing.X")


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("worldsmith.config.text_file.MAX_BYTES.real", "neither a component"),
        ("worldsmith.config.text_file.MAX_BYTES.X", "has no 'X'"),
        (
            "worldsmith.config.text_file.os.PathLike",
            "is the module os, which worldsmith.config.text_file imports but does not contain",
        ),
        ("worldsmith.config.sections.JobConfg", "did you mean 'JobConfig'"),
        ("worldsmith", "not a class name"),
        (["worldsmith.x"], "not a class name"),
    ],
)
def test_names_that_stand_for_no_config(tag: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        class_of(tag)


def test_a_tag_leads_back_to_its_class() -> None:
    assert class_of(tag_of(JobConfig)) is JobConfig
