"""Quantized folders: what transformers makes of them, against formulas; what stays as it was; how large they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoners import from_pretrained, question, write_decoder, write_model, write_reasoner
from safetensors.torch import load_file
from tiny_reasoner import conversation, decoder, plain_inputs, qwen3_vl, write_folder
from torch import Tensor

from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.checkpoint.formats.quantizer import Quantizer
from worldsmith.config.errors import UserError
from worldsmith.families.vision_language.network.backbone import make_network

LAYER = "model.language_model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped tiny Qwen3-VL with random weights."""
    place = tmp_path_factory.mktemp("quantized") / "model"
    write_reasoner(place)
    return place


def quantizer(folder: Path, scheme: Any, group_size: int | None = None, method: Any = "nearest") -> Quantizer:
    model = find_model(folder)
    return model.formats.quantizer(model, scheme, group_size, method)


def nearest(weight: Tensor, size: int, scheme: str) -> Tensor:
    """What is left of a weight [out, in], with a scale for `size` numbers of a row."""
    parts = weight.unflatten(1, (-1, size))
    top = parts.abs().amax(2, keepdim=True)
    if scheme == "FP8_DYNAMIC":
        scale = (top / 448).bfloat16().float()
        rounded = (parts / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    else:
        bits = int(scheme[1])
        scale = (top / ((2**bits - 1) / 2)).bfloat16().float()
        rounded = (parts / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (rounded * scale).bfloat16().flatten(1)


@pytest.mark.parametrize(
    ("scheme", "group", "bits"),
    [("FP8_DYNAMIC", None, 8), ("W8A8", None, 8), ("W8A16", None, 8), ("W4A16", None, 4), ("W4A16", 32, 4)],
)
def test_transformers_gets_the_nearest_numbers(
    folder: Path, tmp_path: Path, scheme: str, group: int | None, bits: int
) -> None:
    made = quantizer(folder, scheme, group)
    made.fill(tmp_path, "small")
    plain, stored = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    model = from_pretrained(tmp_path)
    model(**{n: v.bfloat16() if v.is_floating_point() else v for n, v in question(model).items()})  # makes them dense
    weight = plain[f"{LAYER}.weight"]
    size = weight.shape[1] if scheme in ("FP8_DYNAMIC", "W8A8") else group or 128
    found = model.get_submodule(LAYER).weight
    assert torch.equal(found, nearest(weight, size, scheme))
    kept = [name for name in plain if name in stored and not name.startswith("model.language_model.layers")]
    assert {"lm_head.weight", "model.language_model.embed_tokens.weight", "model.language_model.norm.weight"} < {*kept}
    assert {name for name in plain if ".visual." in name} < {*kept}
    assert all(torch.equal(stored[name], plain[name].bfloat16()) for name in kept)
    # 7 linear layers in each of 3 layers; 16 bits for a scale; int64 sides of packed ones
    layers = [
        value for name, value in plain.items() if name.startswith("model.language_model.layers") and value.ndim == 2
    ]
    assert len(layers) == 21
    small, all_numbers = sum(map(torch.numel, layers)), sum(map(torch.numel, plain.values()))
    scales = sum(
        value.numel() // (group or 128 if scheme in ("W8A16", "W4A16") else value.shape[1]) for value in layers
    )
    sides = 2 * 8 * len(layers) if scheme in ("W8A16", "W4A16") else 0
    expected = 2 * (all_numbers - small) + small * bits // 8 + 2 * scales + sides
    assert sum(value.nbytes for value in stored.values()) == made.sizes.bytes_after == expected
    assert made.sizes.factor == 2 * all_numbers / expected


def test_the_folder_is_whole(folder: Path, tmp_path: Path) -> None:
    """Beside the weights: settings, tokenizer, chat template, preprocessors; and nothing of an adapter."""
    about = quantizer(folder, "FP8_DYNAMIC").fill(tmp_path, "small")
    (folder / "adapter_config.json").write_text("{}")
    names = {file.name for file in folder.iterdir()} - {"adapter_config.json"}
    assert names | {"README.md"} == {file.name for file in tmp_path.iterdir()}
    (folder / "adapter_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert (about["format"], about["dtype"], config["dtype"]) == ("quantized", "bfloat16", "bfloat16")


def test_nvfp4_layers_that_become_one_share_a_scale(folder: Path, tmp_path: Path) -> None:
    made = quantizer(folder, "NVFP4A16")
    made.fill(tmp_path, "small")
    stored, plain = load_file(tmp_path / "model.safetensors"), load_file(folder / "model.safetensors")
    for block, names in (("self_attn", "qkv"), ("mlp", ("gate", "up"))):
        layers = [f"model.language_model.layers.0.{block}.{name}_proj" for name in names]
        top = max(float(plain[f"{layer}.weight"].abs().max()) for layer in layers)
        for layer in layers:
            assert stored[f"{layer}.weight_global_scale"].item() == pytest.approx(448 * 6 / top)
    model = from_pretrained(tmp_path)
    model(**{n: v.bfloat16() if v.is_floating_point() else v for n, v in question(model).items()})
    found, wanted = model.get_submodule(LAYER).weight.float(), plain[f"{LAYER}.weight"]
    assert ((found - wanted).norm() / wanted.norm()).item() == pytest.approx(0.095, abs=0.02)


@pytest.mark.parametrize(("scheme", "name", "most"), [("FP8", "input_scale", 448), ("NVFP4", "input_global_scale", 0)])
def test_observed_ranges_are_those_of_plain_transformers(tmp_path: Path, scheme: str, name: str, most: int) -> None:
    write_model(write_folder(tmp_path / "model"), qwen3_vl())
    samples = [conversation(1), conversation(2, [("image", (1, 4, 6))]), conversation(3, [("video", (2, 4, 4))])]
    made = quantizer(tmp_path / "model", scheme)
    assert made.needs_data
    ours = load_model(tmp_path / "model")
    ours.network.float()
    made.observe(ours, samples, normalize=lambda patches, kind: (patches.float() / 255 - 0.5) / 0.5)
    made.fill(tmp_path, "small")
    plain, seen = from_pretrained(tmp_path / "model", dtype=torch.float32).eval(), dict[str, float]()

    def look(layer: str) -> Any:
        return lambda _, given: seen.__setitem__(layer, max(seen.get(layer, 0.0), float(given[0].abs().max())))

    for layer, module in plain.named_modules():
        module.register_forward_pre_hook(look(layer), with_kwargs=False) if isinstance(
            module, torch.nn.Linear
        ) else None
    with torch.no_grad():
        for sample in samples:
            plain(**plain_inputs(sample))
    stored = load_file(tmp_path / "model.safetensors")
    found = {key.removesuffix(f".{name}"): value.item() for key, value in stored.items() if key.endswith(name)}
    assert len(found) == 14
    for layer, value in found.items():
        assert value == pytest.approx(seen[layer] / most if most else 448 * 6 / seen[layer], rel=0.005)


def test_gptq_keeps_scales_and_loses_less(tmp_path: Path) -> None:
    """On inputs that plain transformers shows: the errors of each layer's outputs."""
    write_model(write_folder(tmp_path / "model"), qwen3_vl())
    samples = [conversation(n, [("image", (1, 4, 6))]) for n in range(12)]
    plain, seen = from_pretrained(tmp_path / "model", dtype=torch.float32).eval(), dict[str, list[Tensor]]()
    layers = {n: m for n, m in plain.named_modules() if isinstance(m, torch.nn.Linear) and ".layers." in n}
    for layer, module in layers.items():
        module.register_forward_pre_hook(
            lambda _, given, at=layer: seen.setdefault(at, []).append(given[0].flatten(0, -2))
        )
    with torch.no_grad():
        for sample in samples:
            plain(**plain_inputs(sample))
    folders = {}
    for method in ("nearest", "gptq"):
        made = quantizer(tmp_path / "model", "W4A16", 32, method)
        if method == "gptq":
            ours = load_model(tmp_path / "model")
            ours.network.float()
            made.observe(ours, samples, normalize=lambda patches, kind: (patches.float() / 255 - 0.5) / 0.5)
        (tmp_path / method).mkdir()
        made.fill(tmp_path / method, method)
        folders[method] = load_file(tmp_path / method / "model.safetensors")
    changed = {n for n, value in folders["gptq"].items() if not torch.equal(value, folders["nearest"][n])}
    assert changed == {f"{layer}.weight_packed" for layer in layers}
    dense = {}
    for method in folders:
        model = from_pretrained(tmp_path / method, dtype="auto")
        model(input_ids=torch.arange(4)[None], mm_token_type_ids=torch.zeros(1, 4).int())
        dense[method] = dict(model.named_parameters())
    for layer, module in layers.items():
        rows = torch.cat(seen[layer])
        lost = [float((rows @ (d[f"{layer}.weight"].float() - module.weight).T).norm()) for d in dense.values()]
        assert lost[1] < 0.9 * lost[0], layer


def test_a_text_decoder(tmp_path: Path) -> None:
    write_decoder(tmp_path / "model", "llama", tie_word_embeddings=True)
    (tmp_path / "small").mkdir()
    quantizer(tmp_path / "model", "W4A16", 16).fill(tmp_path / "small", "small")
    with torch.no_grad():
        before, after = (
            from_pretrained(tmp_path / name, dtype="auto").eval()(input_ids=torch.arange(9)[None]).logits.float()
            for name in ("model", "small")
        )
    assert 0.01 < float((before - after).norm() / before.norm()) < 0.5


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    write_decoder(tmp_path / "narrow")
    reason = r"in groups of 128, but model.layers.0.self_attn.q_proj has 48 inputs \(14 layers.*use --group-size 16"
    with pytest.raises(UserError, match=reason):
        quantizer(tmp_path / "narrow", "W4A16")
    with pytest.raises(UserError, match="group_size 32 has no effect: FP8_DYNAMIC"):
        quantizer(folder, "FP8_DYNAMIC", 32)
    write_model(tmp_path / "experts", decoder("qwen3_moe"))
    with pytest.raises(UserError, match="experts that are stored as one tensor"):
        quantizer(tmp_path / "experts", "FP8_DYNAMIC")


def test_of_a_quantized_folder_nothing_is_made(folder: Path, tmp_path: Path) -> None:
    quantizer(folder, "FP8_DYNAMIC").fill(tmp_path, "small")
    with pytest.raises(UserError, match="contains quantized weights"):
        quantizer(tmp_path, "W4A16")
    with pytest.raises(ValueError, match="quantized weights cannot be trained"):
        make_network(tmp_path, "sdpa")
    assert load_model(tmp_path).folder == tmp_path
