"""The reasoner's loss and gradients against plain transformers: samples one by one, padded, full logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_reasoner import (
    DECODERS,
    conversation,
    decoder,
    make_task,
    mixed_batch,
    model_config,
    plain_losses,
    qwen2_5_vl,
    qwen3_vl,
    write_folder,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from worldsmith.config.sections import CompileConfig
from worldsmith.distributed.world import World
from worldsmith.families.vision_language.inputs import make_inputs
from worldsmith.families.vision_language.network import forward
from worldsmith.models.parameter_names import native_parameters
from worldsmith.objectives.next_token import NextToken
from worldsmith.training.parallel import prepare_network
from worldsmith.training.step import StepInputs, forward_backward

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
BACKBONES: dict[str, Any] = {
    "qwen3_vl": qwen3_vl,
    "qwen3_vl tied": lambda: qwen3_vl(tied=True),
    "qwen3_vl_moe": lambda: qwen3_vl(model_type="qwen3_vl_moe", **MIXTURE),
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_5_vl tied": lambda: qwen2_5_vl(tied=True),
}


def judge(network: Any, config: Any) -> Any:
    """The class of transformers with the weights of `network`, as `from_config` makes it on a CPU."""
    kind: Any = AutoModelForCausalLM if config.model_type in DECODERS else AutoModelForImageTextToText
    attention = network.config._attn_implementation.removesuffix("_by_sample")
    plain = kind.from_config(config, dtype=torch.float32, attn_implementation=attention)
    plain.load_state_dict(network.state_dict())
    return plain


Numbers = tuple[float, dict[str, Tensor]]
"""The loss and the gradients of a step."""


def one_step(model: Any, samples: list[Any], *, accumulate: int = 1, **objective: Any) -> Numbers:
    step = forward_backward(
        StepInputs(0, [samples[index::accumulate] for index in range(accumulate)]),
        make_task(model, **objective),
        seed=0,
    )
    found = {name: p.grad for name, p in native_parameters(model.network).items() if p.grad is not None}
    return step.loss, found


def require_equal(found: Numbers, plain: Any, samples: list[Any]) -> None:
    loss = plain_losses(plain, samples)
    loss.backward()
    assert found[0] == pytest.approx(float(loss.detach()), rel=1e-5)
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    assert found[1].keys() == expected.keys()
    for name, gradient in expected.items():
        assert float((found[1][name] - gradient).norm()) <= 1e-5 * float(gradient.norm()), name


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("name", BACKBONES)
def test_a_batch_of_images_videos_and_text_equals_separate_samples(name: str, packing: bool, tmp_path: Path) -> None:
    config = BACKBONES[name]()
    model = model_config(write_folder(tmp_path, config), sequence_packing=packing).build(seed=1)
    assert model.packs == packing
    batch = mixed_batch(name)
    require_equal(one_step(model, batch), judge(model.network, config), batch)


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_a_batch_of_text_equals_separate_samples(model_type: str, packing: bool, tmp_path: Path) -> None:
    config = decoder(model_type)
    samples = [conversation(index, text=4 + 3 * index) for index in range(1, 6)]
    model = model_config(write_folder(tmp_path, config), sequence_packing=packing).build(seed=1)
    assert model.packs == (packing and model_type != "gpt_oss")
    require_equal(one_step(model, samples), judge(model.network, config), samples)


def test_logits_in_chunks_and_accumulation_change_nothing(tmp_path: Path) -> None:
    """As loss and as gradients: the logits of transformers are those of all positions at once."""
    model = model_config(write_folder(tmp_path)).build(seed=1)
    require_equal(
        one_step(model, mixed_batch(), accumulate=3, chunk_tokens=2), judge(model.network, qwen3_vl()), mixed_batch()
    )


def test_eager_attention_gives_the_same(tmp_path: Path) -> None:
    losses = [
        one_step(model_config(write_folder(tmp_path), attn_implementation=name).build(seed=1), mixed_batch())[0]
        for name in ("eager", "sdpa")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_samples_of_a_row_that_attend_one_by_one_need_no_mask(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are those of the whole row with its mask; `compiled`: the operation that compiled layers call."""
    model = model_config(write_folder(tmp_path), compile=CompileConfig(enabled=compiled)).build(seed=1)
    whole = model_config(write_folder(tmp_path), attn_implementation="eager").build(seed=1)
    made: list[Any] = []
    monkeypatch.setattr(forward, "sdpa_mask", lambda *_, **settings: made.append(settings))
    loss, gradients = one_step(model, mixed_batch())
    monkeypatch.undo()
    assert not made
    expected_loss, expected = one_step(whole, mixed_batch())
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert not torch.equal(*(found["lm_head.weight"] for found in (gradients, expected)))  # two ways indeed
    for name, gradient in expected.items():
        assert float((gradients[name] - gradient).norm()) <= 1e-5 * float(gradient.norm()), name


def test_compiled_layers_are_one_graph_for_all_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hidden states and gradients are those of eager layers."""
    compile_, graphs = torch.compile, []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **settings: compile_(function, backend=count, **settings))
    results = []
    for enabled in (False, True):
        model = model_config(write_folder(tmp_path), compile=CompileConfig(enabled=enabled)).build(device="meta")
        prepare_network(model, World())
        model.materialize("cpu")
        model.init_weights(1)
        for numbers in ([1, 2], [3], [1, 2, 3], [4, 5]):
            loss, gradients = one_step(model, [conversation(number) for number in numbers])
            results.append((loss, torch.cat([gradient.flatten() for gradient in gradients.values()])))
    assert len(graphs) == 1
    for (loss, gradient), (other_loss, other) in zip(results[:4], results[4:]):
        assert other_loss == pytest.approx(loss, rel=1e-6)
        assert float((other - gradient).norm()) <= 1e-5 * float(gradient.norm())


@pytest.mark.parametrize("rows", [4, 3])
def test_samples_of_a_row_see_each_other_only_without_plain_positions(rows: int, tmp_path: Path) -> None:
    """Another first sample changes the second one's loss when the positions have no row that begins anew.

    So it is where the whole row is attended to at once, as in eager attention.
    """
    from dataclasses import replace

    model = model_config(write_folder(tmp_path), attn_implementation="eager").build(seed=1)
    loss = NextToken(NextToken.Config()).loss_sum

    def loss_of_second(first: int) -> float:
        batch = [conversation(first), conversation(2, [("image", (1, 4, 6))])]
        inputs = make_inputs(
            batch, model.network, packed=True, normalize=lambda patches, _: patches / 255, device=model.device
        )
        own = inputs.predicting >= batch[0].num_tokens
        positions = inputs.position_ids[-rows:]
        chosen = replace(inputs, predicting=inputs.predicting[own], targets=inputs.targets[own], position_ids=positions)
        return float(model.network.loss_of(chosen, loss).detach())

    assert (loss_of_second(1) == pytest.approx(loss_of_second(5), rel=1e-6)) == (rows == 4)


def test_a_batch_without_media_gets_no_gradient_from_the_vision_encoder(tmp_path: Path) -> None:
    """The encoder is called, so that ranks agree, and its gradients are exactly zero; the loss has its own bits."""
    model = model_config(write_folder(tmp_path)).build(seed=1)
    samples = [conversation(1), conversation(2)]
    loss, gradients = one_step(model, samples)
    visual = [gradient for name, gradient in gradients.items() if name.startswith("model.visual.")]
    assert len(visual) == sum(name.startswith("model.visual.") for name in native_parameters(model.network))
    assert not any(gradient.any() for gradient in visual)
    with torch.no_grad():
        inputs = make_inputs(
            samples, model.network, packed=True, normalize=lambda patches, _: patches, device=model.device
        )
        states = model.network.model(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            sample_lengths=inputs.sample_lengths,
            use_cache=False,
        ).last_hidden_state[0]
        alone = NextToken(NextToken.Config()).loss_sum(states[inputs.predicting], inputs.targets, model.network.lm_head)
    assert loss == float(alone) / len(inputs.targets)
