"""Weights with NaN or infinity are refused, by name; what holds no floating-point values is not checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from worldsmith.assets import asset_path
from worldsmith.config.errors import UserError
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.models.weights.check_finite import non_finite, require_finite


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_anywhere_is_found(dtype: torch.dtype, value: float) -> None:
    for size in (1, 7, 100):
        for position in (0, size // 2, size - 1):
            tensor = torch.full((size, 3), torch.finfo(dtype).max, dtype=dtype)
            assert non_finite({"a": tensor}) == []
            tensor[position, 1] = value
            assert non_finite({"b": torch.zeros(2), "a": torch.nn.Parameter(tensor)}) == ["a"]


def test_what_has_no_such_values() -> None:
    tensors = {
        "empty": torch.zeros(0, 3),
        "integer": torch.ones(2, dtype=torch.int8),
        "packed": torch.full((2,), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn),
        "meta": torch.ones(2, device="meta"),
    }
    assert non_finite(tensors) == []
    with FakeTensorMode():
        assert non_finite({"fake": torch.ones(2)}) == []


def test_the_message_has_the_first_names_and_the_count() -> None:
    bad = {f"w{index}": torch.tensor([float("nan")]) for index in range(5)}
    with pytest.raises(UserError) as caught:
        require_finite("checkpoint run", non_finite({**bad, "good": torch.ones(1)}))
    assert str(caught.value) == (
        "checkpoint run: 5 tensors contain values that are not finite (NaN or infinity): w0, w1, w2, …. Expected "
        "finite weights; use another checkpoint, or copy or export this one again"
    )
    require_finite("checkpoint run", [])


def test_a_vae_is_refused_too(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(asset_path("tiny_vae"), tmp_path / "vae"))
    file = next(folder.rglob("*.safetensors"))
    weights = load_file(file)
    name = next(iter(weights))
    weights[name].view(-1)[0] = float("inf")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"vae: 1 tensor contains values .*: " + name):
        WanVAE.Config(vae_path=str(folder), precision="float32").build()
