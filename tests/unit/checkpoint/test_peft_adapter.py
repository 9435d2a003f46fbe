"""Adapter folders: what is refused, on the way out and on the way in, and that a folder is never half there."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.model import Cosmos3Defaults
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.weights.formats import ADAPTER_LAYOUT as LAYOUT
from worldsmith.files.untrusted_folder import base_of_adapter
from worldsmith.models.lora import adapter_state, inject_adapters

export_adapter = partial(peft_adapter.export_adapter, LAYOUT, defaults=Cosmos3Defaults())
load_adapter = partial(peft_adapter.load_adapter, LAYOUT)

NETWORK = NetworkConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, mrope_section=[2, 1, 1], latent_channel=4,
)  # fmt: skip
LAYER = "language_model.model.layers.1.self_attn.v_proj_moe_gen"


def adapters(rank: int = 3) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(1)
    shapes = {".lora_A.weight": (rank, 16), ".lora_B.weight": (8, rank)}
    return {LAYER + matrix: torch.randn(shape, generator=stream) for matrix, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_adapter(adapters(), tmp_path / "adapter", alpha=6)
    return tmp_path / "adapter"


def change_config(folder: Path, **values) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_was_exported_is_read_back_to_the_bit(folder):
    network = Cosmos3Network(NETWORK)
    assert load_adapter(network, folder) == [LAYER]
    state = adapter_state(network)
    assert state.keys() == adapters().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in adapters().items())
    assert network.get_submodule(LAYER).scaling == {"default": 2.0}


def test_names_go_both_ways():
    names = [f"vae2llm.lora_{side}.weight" for side in "AB"] + list(adapters())
    assert [LAYOUT.native_adapter_name(LAYOUT.peft_name(name)) for name in names] == names
    for wrong in ("vae2llm.weight", "nothing.lora_A.weight"):
        with pytest.raises(ValueError, match="is not"):
            LAYOUT.peft_name(wrong)
    for wrong in ("proj_in.lora_A.weight", "base_model.model.proj_in.weight", "base_model.model.fc.lora_A.weight"):
        with pytest.raises(ValueError, match="is not"):
            LAYOUT.native_adapter_name(wrong)


def test_a_second_export_does_nothing_and_another_one_needs_force(folder):
    before = (folder / "adapter_model.safetensors").stat().st_mtime_ns
    assert not export_adapter(adapters(), folder, alpha=6)
    assert (folder / "adapter_model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(FileExistsError, match="is another export: replace it with --force"):
        export_adapter(adapters(), folder, alpha=7)
    (folder / "notes.txt").write_text("keep")
    with pytest.raises(FileExistsError, match=r"notes\.txt\. Move these files first"):
        export_adapter(adapters(), folder, alpha=7, force=True)
    (folder / "notes.txt").unlink()
    assert export_adapter(adapters(), folder, alpha=7, force=True)
    assert json.loads((folder / "adapter_config.json").read_text())["lora_alpha"] == 7


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "manifest.json"])
def test_an_export_with_a_changed_byte_is_not_called_complete(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(FileExistsError, match=rf"missing or changed files \(.*{name}.*\): replace it with --force"):
        export_adapter(adapters(), folder, alpha=6)
    assert export_adapter(adapters(), folder, alpha=6, force=True)
    assert not export_adapter(adapters(), folder, alpha=6)


@pytest.mark.parametrize(
    ("base", "name", "revision"),
    [
        ("", None, None),
        ("base", "{here}/base", None),  # a folder that is here
        ("org/here", "{here}/org/here", None),  # the same, although a repository could be named so
        ("outputs/train/gone", "outputs/train/gone", None),
        ("org/model", "org/model", None),
        ("hf://org/here@v1/transformer", "org/here", "v1"),
    ],
)
def test_the_base_is_named_where_peft_can_find_it(tmp_path, monkeypatch, base, name, revision):
    """PEFT's own reader sees a repository of the hub, or the absolute path of a folder; the manifest has it too."""
    from peft import PeftConfig

    monkeypatch.chdir(tmp_path)
    for folder in ("base", "org/here"):
        (tmp_path / folder).mkdir(parents=True)
    export_adapter(adapters(), tmp_path / "out", alpha=6, base_model=base)
    config = PeftConfig.from_pretrained(str(tmp_path / "out"))
    name = None if name is None else name.format(here=tmp_path)
    assert (config.base_model_name_or_path, config.revision) == (name, revision)
    assert base_of_adapter(tmp_path / "out") == (f"{name}@{revision}" if revision else name or "")
    expected = str(tmp_path / base) if base in ("base", "org/here") else base
    assert json.loads((tmp_path / "out" / "worldsmith.json").read_text())["base_model"] == expected
    monkeypatch.chdir("/")  # the same export again, although the folder is not seen from here
    assert not export_adapter(adapters(), tmp_path / "out", alpha=6, base_model=base)


def test_matrices_that_are_not_finite_are_neither_written_nor_read(folder):
    broken = adapters()
    broken[f"{LAYER}.lora_B.weight"][0, 0] = float("nan")
    with pytest.raises(UserError, match=r"1 tensor contains values that are not finite .*lora_B"):
        export_adapter(broken, folder.parent / "out", alpha=6)
    (folder / "worldsmith.json").unlink()  # as another program writes it
    (folder / "manifest.json").unlink(missing_ok=True)
    file = folder / "adapter_model.safetensors"
    matrices = load_file(file)
    next(tensor for name, tensor in matrices.items() if "lora_A" in name)[0, 0] = float("-inf")
    save_file(matrices, file)
    with pytest.raises(UserError, match=r"adapter: 1 tensor contains values that are not finite .*lora_A"):
        load_adapter(Cosmos3Network(NETWORK), folder)


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not an export"):
        export_adapter(adapters(), tmp_path / "mine", alpha=6, force=True)
    assert (tmp_path / "mine/notes.txt").read_text() == "keep"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "there are no adapters"),
        ({name: t * ("lora_A" in name) for name, t in adapters().items()}, "they have no effect"),
        ({**adapters(), "vae2llm.lora_A.weight": torch.ones(5, 16)}, r"several ranks: \[3, 5\]"),
    ],
)
def test_what_makes_no_adapter_is_not_written(tmp_path, state, message):
    with pytest.raises(ValueError, match=message):
        export_adapter(state, tmp_path / "out", alpha=6)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; only LORA"),
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out = True is not supported"),
        ({"alpha_pattern": {"to_q": 3}}, "alpha_pattern"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            "'pissa_niter_4' is not supported: PEFT has changed the base",
        ),
        ({"init_lora_weights": "loftq"}, "init_lora_weights = 'loftq' is not supported"),
        ({"r": 4}, r"lora_A\.weight has the shape \[3, 16\], expected \[4, 16\]"),
    ],
)
def test_adapters_of_another_kind_are_refused(folder, values, message):
    change_config(folder, **values)
    with pytest.raises(ValueError, match=message):
        load_adapter(Cosmos3Network(NETWORK), folder)


def test_damaged_folders_are_refused(folder, tmp_path):
    tensors = load_file(folder / "adapter_model.safetensors")
    (folder / "manifest.json").unlink()  # with checksums every change is found before it is looked at
    (first, second) = sorted(tensors)
    save_file({first: tensors[first]}, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=f"lacks {second}"):
        load_adapter(Cosmos3Network(NETWORK), folder)
    save_file({"base_model.model.unknown.lora_A.weight": tensors[first]}, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors: 'unknown\.weight' is not a diffusers parameter"):
        load_adapter(Cosmos3Network(NETWORK), folder)
    with pytest.raises(FileNotFoundError, match=r"has no adapter_config\.json"):
        load_adapter(Cosmos3Network(NETWORK), tmp_path)


def test_an_adapter_for_another_depth_is_refused(folder):
    shallow = replace(NETWORK, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.v_proj_moe_gen.*cannot get an adapter"):
        load_adapter(Cosmos3Network(shallow), folder)


def test_a_network_with_adapters_takes_no_others(folder):
    network = Cosmos3Network(NETWORK)
    inject_adapters(network, rank=2, alpha=2, target_modules="q_proj")
    with pytest.raises(ValueError, match="already has adapters"):
        load_adapter(network, folder)


def test_a_released_base_may_be_given_by_its_short_name(tmp_path: Path) -> None:
    export_adapter(adapters(), tmp_path / "out", alpha=6, base_model="Cosmos3-Nano")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "nvidia/Cosmos3-Nano"
