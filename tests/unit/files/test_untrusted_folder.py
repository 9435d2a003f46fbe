"""Model folders of others: nothing in them decides which code runs, or which files outside the folder are read."""

from __future__ import annotations

import ast
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_reasoner import write_folder

import worldsmith
from worldsmith.assets import asset_path
from worldsmith.checkpoint.sources.safetensors_weights import tensor_files
from worldsmith.families.vision_language.network.backbone import make_network
from worldsmith.families.vision_language.weights.conversion import find_conversion
from worldsmith.files.errors import UserError
from worldsmith.files.untrusted_folder import load_from_folder, read_weight_map, require_known_attention
from worldsmith.models.model_files import is_complete

SOURCES = Path(worldsmith.__file__).parent
RUNS = "open(__file__ + '.ran', 'w').close()\n"
LOADERS = ("from_pretrained", "from_config")


def change(file: Path, **settings: Any) -> None:
    data = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(data | settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder that brings code of its own."""
    home = write_folder(tmp_path)
    (home / "evil.py").write_text(f"{RUNS}class EvilConfig: pass\nclass EvilTokenizer: pass\n")
    return home


def load_calls(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS)
            or (
                isinstance(node.func, ast.Name)
                and node.func.id == "partial"
                and any(isinstance(given, ast.Attribute) and given.attr in LOADERS for given in node.args[:1])
            )
        )
    ]


def is_trusting(call: ast.Call) -> bool:
    """Whether a call leaves it to the library, or to the user at a prompt, if code of a folder runs."""
    given = {word.arg: word.value for word in call.keywords}
    value = given.get("trust_remote_code")
    return not (isinstance(value, ast.Constant) and value.value is False)


def test_no_call_lets_code_of_a_model_folder_run() -> None:
    calls, mentions = [], 0
    for file in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        calls += [(file.relative_to(SOURCES), call.lineno, is_trusting(call)) for call in load_calls(tree)]
        mentions += sum(isinstance(node, ast.Attribute) and node.attr in LOADERS for node in ast.walk(tree))
    assert len(calls) == mentions, "a loader is used in a way that this test does not see"
    assert len(calls) > 5
    assert [(str(file), line) for file, line, trusting in calls if trusting] == []


def test_only_one_function_reads_model_folders_of_the_libraries() -> None:
    found = {
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
    }
    assert found == {"files/untrusted_folder.py"}


def test_a_model_type_that_needs_code_is_refused_without_a_question(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.EvilConfig"})
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\ny\n"))
    from transformers import AutoConfig

    with pytest.raises(ValueError, match="model_type is 'evil'"):
        make_network(folder, "eager")
    with pytest.raises(UserError, match=r"code.*is not executed"):
        load_from_folder(AutoConfig, folder)
    assert sys.stdin.tell() == 0
    assert not list(folder.glob("*.ran"))


def test_a_tokenizer_that_needs_code_is_refused_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "evil.py").write_text(f"{RUNS}class EvilTokenizer: pass\n")
    names = {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}}
    change(tmp_path / "tokenizer_config.json", **names)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\ny\n"))
    with pytest.raises(UserError, match=r"code.*is not executed"):
        load_from_folder(AutoTokenizer, tmp_path)
    assert sys.stdin.tell() == 0
    assert not list(tmp_path.glob("*.ran"))


def test_a_known_model_type_is_loaded_whatever_its_auto_map_says(folder: Path) -> None:
    from transformers import AutoConfig

    change(folder / "config.json", auto_map={"AutoConfig": "evil.EvilConfig"})
    assert (
        load_from_folder(AutoConfig, folder).model_type
        == json.loads((folder / "config.json").read_text())["model_type"]
    )
    assert not list(folder.glob("*.ran"))


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"])
@pytest.mark.parametrize("value", ["someone/kernels", {"text_config": "someone/kernels@main:go"}, 3])
@pytest.mark.parametrize("part", [None, "text_config"])
def test_attention_out_of_a_repository_is_refused(folder: Path, key: str, value: Any, part: str | None) -> None:
    from transformers import AutoConfig

    file = folder / "config.json"
    config = json.loads(file.read_text())
    (config if part is None else config[part])[key] = value
    file.write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"config\.json: .*{key}.*expected one of .*sdpa.*found"):
        load_from_folder(AutoConfig, folder)
    with pytest.raises(UserError, match=key):
        make_network(folder, "cosmos")
    with pytest.raises(UserError, match=key):
        find_conversion(config)


@pytest.mark.parametrize("value", ["eager", "sdpa", "flash_attention_2", None, {"": "sdpa", "text_config": "eager"}])
def test_attention_of_the_library_is_accepted(value: Any) -> None:
    require_known_attention({"_attn_implementation": value, "parts": [{"attn_implementation": value}]}, "config.json")


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/passwd", "part/../../x", "..", "", "a\0b", "C:\\x", "..\\x"]
)
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": name}}))
    (tmp_path / "model-1.safetensors").touch()
    for read in (
        lambda: read_weight_map(index),
        lambda: tensor_files(tmp_path),
        lambda: is_complete(tmp_path, ("*",)),
        lambda: load_from_folder(dict, tmp_path),
    ):
        with pytest.raises(UserError, match=r"index\.json: weight_map: expected files in the folder of the index"):
            read()


def test_an_index_may_name_files_in_folders_below(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "transformer/model-1.safetensors", "b": "b..c.safetensors"}}))
    assert read_weight_map(index)["a"] == "transformer/model-1.safetensors"


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": [["x"]]}, "AutoTokenizer .*TypeError"),
        ("special_tokens_map.json", {"eos_token": 0.1}, "AutoTokenizer .*TypeError: Special token eos_token"),
        ("tokenizer.json", {"version": "/dev/zero"}, "AutoTokenizer .*KeyError"),
        ("config.json", {"model_type": "t5", "is_encoder_decoder": "no"}, "AutoConfig .*is_encoder_decoder"),
    ],
)
def test_what_the_libraries_cannot_read_is_an_error_with_the_folder(
    folder: Path, name: str, settings: dict[str, Any], words: str
) -> None:
    from transformers import AutoConfig, AutoTokenizer

    change(folder / name, **settings)
    with pytest.raises(ValueError, match=rf"{folder}: {words}"):
        load_from_folder(AutoConfig if name == "config.json" else AutoTokenizer, folder)


def test_what_is_shipped_is_loaded() -> None:
    from diffusers import AutoencoderKLWan
    from transformers import AutoTokenizer

    assert load_from_folder(AutoTokenizer, asset_path("tiny_tokenizer")).eos_token
    model = load_from_folder(AutoencoderKLWan, asset_path("tiny_vae"))
    assert "trust_remote_code" not in model.config
