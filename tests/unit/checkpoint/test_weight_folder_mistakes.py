"""Folders of weights with mistakes: each ends with exit code 2 and a message that names the file and what is wrong."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored_models import spec_of

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.checkpoint.sources.open_weights import StartWeights, open_weights
from worldsmith.checkpoint.sources.warm_start import load_weights
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.model import Cosmos3Defaults
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.weights.formats import ADAPTER_LAYOUT
from worldsmith.tools.export.convert import convert

export_adapter = partial(peft_adapter.export_adapter, ADAPTER_LAYOUT, defaults=Cosmos3Defaults())
read_adapter = partial(peft_adapter.read_adapter, ADAPTER_LAYOUT)

NETWORK = NetworkConfig(
    vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, mrope_section=[2, 1, 1], latent_channel=4,
)  # fmt: skip
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
TABLE = "language_model.model.embed_tokens.weight"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as `native/` and `diffusers/`."""
    folder = tmp_path_factory.mktemp("bases")
    start = StartWeights(spec_of(NETWORK), 0)
    (folder / "source").mkdir()
    save_file({f"model.net.{name}": start.read(name) for name in start.shapes}, folder / "source" / WEIGHTS)
    network = {name: getattr(NETWORK, name) for name in ("hidden_size", "num_hidden_layers", "rope_theta", "head_dim",
               "num_attention_heads", "num_key_value_heads", "vocab_size", "intermediate_size", "latent_channel",
               "mrope_section")}  # fmt: skip
    (folder / "source" / "config.json").write_text(json.dumps({"model": {"config": {"network": network}}}))
    for to in ("native", "diffusers"):
        convert(str(folder / "source"), folder / to, to=to)
        (folder / to / "manifest.json").unlink()  # the mistakes are those of folders without checksums
    return folder


def copy(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def sharded(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda index: None) -> None:
    """Two files and an index, which `change` may spoil."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names, half = list(tensors), len(tensors) // 2
    for number, part in enumerate((names[:half], names[half:])):
        save_file({name: tensors[name] for name in part}, folder / f"part{number}.safetensors")
    index = {"weight_map": {name: f"part{int(i >= half)}.safetensors" for i, name in enumerate(names)}}
    (folder / INDEX).write_text(json.dumps(change(index) or index))


def config(folder: Path, name: str = "config.json", **network: Any) -> None:
    file = folder / name
    data = json.loads(file.read_text())
    (data["model"]["config"]["network"] if "model" in data else data).update(network)
    file.write_text(json.dumps(data))


def write(name: str, text: str | bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def moved(index: dict[str, Any]) -> None:
    index["weight_map"] |= dict.fromkeys(index["weight_map"], "part0.safetensors")


MISTAKES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "cut": ("native", lambda f: os.truncate(f / WEIGHTS, 900), r"model\.safetensors is damaged"),
    "no weights": ("native", write(WEIGHTS, "version https://git-lfs"), r"model\.safetensors is damaged"),
    "more in the index": (
        "native",
        lambda f: sharded(f, lambda index: index["weight_map"].update({"model.net.other": "part0.safetensors"})),
        r"part0\.safetensors .*model\.net\.other.*index\.json",
    ),
    "another shard": ("native", lambda f: sharded(f, moved), r"part0\.safetensors .*index\.json"),
    "no map": (
        "native", lambda f: sharded(f, lambda index: {"metadata": {}}),
        r"index\.json: weight_map: expected an object .*found nothing",
    ),
    "map of numbers": (
        "native", lambda f: sharded(f, lambda index: {"weight_map": {"model.net.a": 1}}), r"index\.json: .* 1 for model"
    ),
    "index a list": ("native", lambda f: sharded(f, lambda index: [1]), r"index\.json: expected an object, found a li"),
    "index cut": ("native", write(INDEX, '{"weight_map": {'), r"index\.json:1:17: not valid JSON"),
    "config cut": ("native", write("config.json", '{"a":'), r"config\.json:1:6: not valid JSON"),
    "config a list": ("native", write("config.json", "[1]"), r"config\.json: expected an object, found a list"),
    "config no text": ("diffusers", write("config.json", b"\xff\xfe\xff"), r"config\.json: not valid JSON"),
    "section a list": (
        "native", write("config.json", '{"model": []}'), r"config\.json: model: expected an object, found a list"
    ),
    "number as text": (
        "native", lambda f: config(f, hidden_size="8"), r"config\.json: hidden_size: expected an integer, found '8'"
    ),
    "number as text there": (
        "diffusers", lambda f: config(f, hidden_size="8"), r"config\.json: .*hidden_size: expected an integer"
    ),
    "rope as text": ("diffusers", lambda f: config(f, rope_axes_dim=None, rope_scaling="x"), r"config\.json: rope_sca"),
    "unknown setting": (
        "native", lambda f: config(f, hiden_size=8),
        r"config\.json: hiden_size: NetworkConfig has no field 'hiden_size'\s+-> did you mean 'hidden_size'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_file_is_named(name: str, bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, spoil, message = MISTAKES[name]
    folder = copy(bases / source, tmp_path / "base")
    spoil(folder)
    assert main(["convert", str(folder), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert str(folder) in said
    assert not (tmp_path / "out").exists()


def test_a_shard_that_is_whole_is_read(bases: Path, tmp_path: Path) -> None:
    """The judge of the mistakes above: without one, the same folder opens."""
    sharded(copy(bases / "native", tmp_path / "base"))
    assert len(open_weights(tmp_path / "base").shapes) == len(StartWeights(spec_of(NETWORK), 0).shapes)


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is readable for root")
def test_an_unreadable_file_is_said_to_be_so(bases: Path, tmp_path: Path) -> None:
    folder = copy(bases / "native", tmp_path / "base")
    (folder / WEIGHTS).chmod(0)
    with pytest.raises(PermissionError, match=r"model\.safetensors"):
        open_weights(folder)


@pytest.mark.parametrize("source", ["native", "diffusers"])
@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "inner"])
def test_names_of_wrapped_models_are_understood(
    bases: Path, tmp_path: Path, source: str, wrapper: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What DDP and torch.compile put into the names is left out, and said."""
    folder = copy(bases / source, tmp_path / "base")
    file = next(folder.glob("*.safetensors"))
    tensors = load_file(file)
    if wrapper == "inner":
        renamed = {name.replace("layers.0.", "layers.0._orig_mod."): value for name, value in tensors.items()}
    else:
        renamed = {wrapper + name: value for name, value in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, file)
    opened, plain = open_weights(folder), open_weights(bases / source)
    assert opened.shapes == plain.shapes
    assert all(torch.equal(opened.read(name), plain.read(name)) for name in plain.shapes)
    assert ("module." if wrapper == "module." else "_orig_mod.") in caplog.text


def test_one_tensor_under_two_names_is_refused(bases: Path, tmp_path: Path) -> None:
    folder = copy(bases / "native", tmp_path / "base")
    tensors = load_file(folder / WEIGHTS)
    tensors[f"module.model.net.{TABLE}"] = torch.zeros(20, 8)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UserError, match=r"model\.net\.language_model.* and module\.model\.net\.language_model.* same"):
        open_weights(folder)


def test_names_that_are_all_foreign_are_shown_and_not_to_be_skipped(tmp_path: Path) -> None:
    """Skipping what is missing would train from random weights: names of both sides are shown instead."""
    (tmp_path / "base").mkdir()
    save_file({f"model.net.wrapped.{TABLE}": torch.zeros(20, 8)}, tmp_path / "base" / WEIGHTS)
    with pytest.raises(UserError) as caught:
        load_weights(str(tmp_path / "base"), {f"net.{TABLE}": torch.zeros(20, 8)})
    assert f"wrapped.{TABLE}" in str(caught.value)
    assert f"net.{TABLE}" in str(caught.value)
    assert "keys_to_skip" not in str(caught.value)


ADAPTER_MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut": (lambda f: os.truncate(f / "adapter_model.safetensors", 100), r"adapter_model\.safetensors is damaged"),
    "list": (write("adapter_config.json", "[]"), r"adapter_config\.json: expected an object, found a list"),
    "config cut": (write("adapter_config.json", "{"), r"adapter_config\.json:1:2: not valid JSON"),
    "text": (
        lambda f: config(f, "adapter_config.json", r="4"),
        r"adapter_config\.json: r: expected an integer above 0, found '4'",
    ),
    "zero": (
        lambda f: config(f, "adapter_config.json", lora_alpha=0),
        r"adapter_config\.json: lora_alpha: expected .* found 0",
    ),
    "huge": (
        lambda f: config(f, "adapter_config.json", lora_alpha=10**400),
        r"adapter_config\.json: lora_alpha: expected a number above 0",
    ),
    "flipped": (lambda f: flip(f / "adapter_model.safetensors"), r"is damaged: the content of adapter_model"),
}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ADAPTER_MISTAKES)
def test_mistakes_in_adapter_folders(name: str, tmp_path: Path) -> None:
    spoil, message = ADAPTER_MISTAKES[name]
    layer = "language_model.model.layers.0.self_attn.v_proj_moe_gen"
    shapes = {f"{layer}.lora_A.weight": (2, 8), f"{layer}.lora_B.weight": (8, 2)}
    export_adapter({name: torch.ones(shape) for name, shape in shapes.items()}, tmp_path / "adapter", alpha=4)
    spoil(tmp_path / "adapter")
    if name != "flipped":
        (tmp_path / "adapter" / "manifest.json").unlink()
    with pytest.raises(UserError, match=message):
        read_adapter(tmp_path / "adapter")
