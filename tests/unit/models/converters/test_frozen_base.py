"""`FrozenBase`: what it goes with, how weights are rounded, and what they take. The judge is written in plain torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import qlora_runs
from qlora_runs import qlora_config
from toy_family import ToyModel

from worldsmith.config import ConfigError
from worldsmith.config.tree.references import resolve
from worldsmith.models.weights.weight_table import table_of, weight_table
from worldsmith.training.preflight import build_optimizer
from worldsmith.training.state_bytes import state_bytes


@pytest.mark.parametrize(
    ("path", "value", "remedy"),
    [
        ("model.config.lora_enabled", False, "frozen_base freezes the weights that it quantizes.*omit the converter"),
        ("checkpoint.save_weights", "all", 'stores only quantized base weights.*write "trained"'),
        (
            "model.config.ema.trainable_only",
            False,
            "would need as much memory as the unquantized weights.*set it to true",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused_with_the_way_out(path: str, value: Any, remedy: str) -> None:
    config: Any = qlora_config(Path("nowhere"))
    if path.endswith("lora_enabled"):
        config.model.config = ToyModel.Config(converters=config.model.config.converters, ema=config.model.config.ema)
    section, _, name = path.rpartition(".")
    node = config
    for part in section.split("."):
        node = getattr(node, part)
    setattr(node, name, value)
    with pytest.raises(ConfigError, match=f"(?s){path} = .*{remedy}"):
        resolve(config)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_layer_computes_with_the_nearest_of_evenly_spaced_values(bits: int) -> None:
    """Between the least and the largest of 32 neighbours, one of which is zero: that is the judge, in plain torch."""
    import torch
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from torch import nn

    from worldsmith.models.converters.frozen_base import BLOCK, packed_bytes
    from worldsmith.models.converters.quantized_linear import FORMS, QuantizedLinear

    torch.manual_seed(0)
    plain = nn.Linear(72, 41)  # whose last block is no whole one
    with torch.device("meta"):
        layer = QuantizedLinear(nn.Linear(72, 41), bits=bits, block=BLOCK, quantized_bytes=packed_bytes(72 * 41, bits))
    layer.bias = plain.bias
    layer.quantize(plain.weight.detach())
    pieces = []
    for block in plain.weight.detach().flatten().split(32):
        least, largest = block.min().clamp(max=0), block.max().clamp(min=0)
        step = (largest - least) / (2**bits - 1)
        values = (torch.arange(2**bits) - (-least / step).round()) * step.bfloat16().float()
        pieces.append(values[(block[:, None] - values).abs().argmin(1)])
    found, expected = layer.dense(torch.float32), torch.cat(pieces).view(41, 72)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert 0 < (found - plain.weight.detach()).abs().mean() < 0.1 / 2 ** (bits - 4) * plain.weight.abs().mean()
    if bits == 8:
        of_library = (
            dequantize(layer.packed, layer.scale.float(), layer.zero, FORMS[8]).flatten()[: 41 * 72].view(41, 72)
        )
        assert torch.equal(found, of_library)

    x, other = (torch.randn(3, 72, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    output, wanted = layer(x), nn.functional.linear(other, found, plain.bias)
    output.square().sum().backward()
    wanted.square().sum().backward()
    assert torch.equal(output, wanted)
    torch.testing.assert_close(x.grad, other.grad)

    assert layer.weight.is_meta
    assert sum(t.numel() * t.element_size() for t in (layer.packed, layer.scale, layer.zero)) == layer.quantized_bytes
    assert plain.weight.numel() * 32 / (layer.quantized_bytes * 8) == pytest.approx(32 / (bits + 24 / 32), rel=0.02)


def test_a_plan_counts_the_bytes_of_the_other_form() -> None:
    """Two layers of 4 × 4 weights: 8 bytes and a scale for each; biases and adapters in float32."""
    pytest.importorskip("compressed_tensors")
    from worldsmith.distributed.degrees import Degrees

    config = qlora_config(Path("nowhere"))
    model = config.model.config.build(device="meta")
    build_optimizer(config, model.network)
    table = weight_table(config.model.config)
    assert table == table_of(model)
    taken = state_bytes(table, config, Degrees(replicate=1, shard=1)).parameters
    assert taken == 2 * (16 + 2 + 1) + 4 * (2 * 4 + 2 * 2 * 2 * 4)


def test_constants_of_the_library_have_values_though_it_is_imported_for_a_network_on_meta() -> None:
    """Without them NVFP4 weights cannot be unpacked later in the process. A new process: the import happens once."""
    script = """
from pathlib import Path
from qlora_runs import qlora_config
qlora_config(Path("nowhere")).model.config.build(device="meta")
from compressed_tensors.compressors.nvfp4.helpers import kE2M1ToFloat
assert kE2M1ToFloat.tolist()[-1] == 6.0
"""
    support = str(Path(qlora_runs.__file__).parent)
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": support})
