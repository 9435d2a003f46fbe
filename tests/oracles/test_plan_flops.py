"""Operations of a simulated step of Cosmos3 against the arithmetic of its layers."""

from __future__ import annotations

import math

import pytest
from recipe_environment import PLACES

import worldsmith.families.recipes  # noqa: F401 (registers them)
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.families.cosmos3.network.sequence import token_grid
from worldsmith.families.cosmos3.task import StepCounter
from worldsmith.planning.simulation.simulate import simulate
from worldsmith.planning.simulation_inputs import assumed_batches, substitute_missing_components, task_for
from worldsmith.training.preflight import build_optimizer


def test_products_outside_attention_are_those_of_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside it a kernel also makes what is masked, and gradients that no one needs: those of frozen text."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    config = resolve(get_recipe("vision_sft_nano_tiny"), keep_unset="names")
    config.model.config.activation_checkpointing.mode = "none"
    config.trainer.grad_accum_iter = 1
    with substitute_missing_components(config) as stated:
        (batch,) = assumed_batches(stated.config, fill=0.3).batches
        work = simulate(stated.config, [batch], ranks=1)
        network = task_for(stated.config, 1).model.network
        build_optimizer(stated.config, network)  # chooses what is trained
    text = [len(sample.text_ids) + 2 for sample in batch]
    latents = [math.prod(token_grid(sample.latent_shape, config.model.config.network)) for sample in batch]
    counted = StepCounter(network, text, latents).count()
    assert work.hardware_flops - work.attention_flops == counted.linear_forward + counted.linear_backward
    assert work.attention_flops >= counted.attention_forward + counted.attention_backward
