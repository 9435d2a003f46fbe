"""Operations of a reasoner's step by arithmetic, against PyTorch's counter over a real step of a tiny one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_reasoner import conversation, decoder, make_task, model_config, qwen2_5_vl, qwen3_vl, write_folder
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from worldsmith.families.vision_language.network.shapes_and_flops import VisionLanguageStepCounter
from worldsmith.families.vision_language.policy import FreezeConfig

MEDIA = [("image", (1, 4, 6)), ("video", (2, 4, 4))]
WIDE = [("image", (1, 16, 20)), ("video", (2, 12, 12))]
"""Of many windows, so that attention over whole frames would be seen."""
ADAPTERS = {"lora_enabled": True, "lora_rank": 4, "lora_target_modules": "q_proj,v_proj,down_proj"}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GROUPED = {torch.ops.aten._grouped_mm: lambda rows, weights, *_, **__: 2 * rows[0] * rows[1] * weights[-1]}
"""What PyTorch's counter does not know: each row is multiplied with one expert's weight."""
CASES: dict[str, Any] = {
    "all weights": (qwen3_vl(), MEDIA, {}),
    "a frozen encoder": (qwen3_vl(), MEDIA, {"freeze": FreezeConfig(freeze_vision_encoder=True)}),
    "a frozen language model": (qwen3_vl(), MEDIA, {"freeze": FreezeConfig(freeze_llm=True)}),
    "adapters": (qwen3_vl(), MEDIA, ADAPTERS),
    "a mixture": (qwen3_vl(model_type="qwen3_vl_moe", **EXPERTS), MEDIA, {}),
    "windows": (qwen2_5_vl(), WIDE, {}),
    "windows and a frozen encoder": (qwen2_5_vl(), WIDE, {"freeze": FreezeConfig(freeze_vision_encoder=True)}),
    "windows and adapters": (qwen2_5_vl(), MEDIA, ADAPTERS),
    "a text decoder": (decoder("llama"), [], {}),
    "tied": (decoder("qwen3"), [], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_has_the_operations_that_pytorch_counts(case: str, tmp_path: Path) -> None:
    """PyTorch counts the half of a causal score matrix that is masked, too, and the few products of rotary tables."""
    config, media, settings = CASES[case]
    task = make_task(model_config(write_folder(tmp_path / "model", config), **settings).build(seed=0))
    batch = [conversation(position, media, text=40, backbone=config.model_type) for position in (3, 7)]
    (length,) = {sample.num_tokens for sample in batch}
    frames = [grid[1:] for _, grid in media for _ in range(grid[0])] * 2
    supervised = sum(sample.num_supervised for sample in batch)
    found = VisionLanguageStepCounter(task.model.network, [length] * 2, frames, supervised).count()
    assert task.count_flops(batch) == found.total

    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False, custom_mapping=GROUPED) as forward:
            loss = task.loss(batch, seed=0).sum
        with FlopCounterMode(display=False, custom_mapping=GROUPED) as backward:
            loss.backward()
    vision = VisionLanguageStepCounter(task.model.network, [], frames, 0).count()
    whole = 2 * length / (length + 1)  # pairs of a whole matrix, of those that count here
    seen = vision.attention_forward + whole * (found.attention_forward - vision.attention_forward)
    assert forward.get_total_flops() == pytest.approx(found.linear_forward + seen, rel=0.01)
    seen = vision.attention_backward + whole * (found.attention_backward - vision.attention_backward)
    assert backward.get_total_flops() == pytest.approx(found.linear_backward + seen, rel=0.01)


def test_of_other_layers_nothing_is_said(tmp_path: Path) -> None:
    task = make_task(model_config(write_folder(tmp_path / "model", decoder("deepseek_v3"))).build(seed=0))
    assert task.count_flops([conversation(1)]) is None
