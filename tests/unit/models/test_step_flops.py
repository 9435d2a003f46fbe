"""The operations that are counted by arithmetic, against PyTorch's own counter on a tiny network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.families.cosmos3.task import StepCounter
from worldsmith.models.lora import inject_adapters
from worldsmith.models.video_model import ActionLayout, SampleLayout
from worldsmith.training.optimizer import select_parameters

SIZES = {
    "vocab_size": 32, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "mrope_section": [2, 1, 1], "latent_channel": 4,
}  # fmt: skip
EDGE = {"hidden_act": "relu2", "qk_norm_for_text": False, "use_und_k_norm_for_gen": True}
RECIPE = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]
# Equal samples: their attention is one batch without padding.
LAYOUTS = [SampleLayout([5] * 9, (3, 4, 6), fps=24.0)] * 2
TEXT, LATENT = [11, 11], [18, 18]
ACTIONS = ActionLayout(rows=5, channels=4, clean_rows=1, offset=0, domain=2, fps=24.0)


def network_of(train: list[str], *, lora: str = "", **fields) -> Cosmos3Network:
    torch.manual_seed(0)
    network = Cosmos3Network(NetworkConfig(**SIZES | fields))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.1)
    if lora:
        inject_adapters(network, rank=2, alpha=4, target_modules=lora)
    select_parameters(network, train)
    return network


def measured(network: Cosmos3Network) -> tuple[dict[str, int], dict[str, int]]:
    """What PyTorch counts in the forward pass and in the backward pass, per kind of product."""
    layouts = [replace(layout, actions=ACTIONS) for layout in LAYOUTS] if network.config.action_gen else LAYOUTS
    pack = pack_samples(layouts, network.config, eos_id=0, vision_start_id=1)
    latents = [torch.randn(4, *layout.latent_shape) for layout in LAYOUTS]
    actions = torch.randn(10, 6) if network.config.action_gen else None
    counts = []
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as counter:
            loss = sum(v.square().mean() for v in network(pack, latents, torch.tensor([300.0, 700.0]), actions=actions))
        counts.append(counter)
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        counts.append(counter)
    kinds = [{str(op): n for op, n in c.get_flop_counts()["Global"].items()} for c in counts]
    return tuple(
        {
            "linear": sum(n for op, n in kind.items() if op in ("aten.mm", "aten.addmm")),
            "attention": sum(n for op, n in kind.items() if op in ("aten.bmm", "aten.baddbmm")),
        }
        for kind in kinds
    )


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(lambda: network_of([]), id="all trained"),
        pytest.param(lambda: network_of(RECIPE), id="recipe"),
        pytest.param(lambda: network_of([*RECIPE, "k_norm_und_for_gen"], **EDGE), id="edge recipe"),
        pytest.param(lambda: network_of(["layers.1.self_attn.k_proj.", "llm2vae"]), id="one text projection"),
        pytest.param(lambda: network_of([], lora="q_proj_moe_gen,o_proj_moe_gen"), id="adapters"),
    ],
)
def test_linear_products_equal_what_pytorch_counts(network):
    network = network()
    flops = StepCounter(network, TEXT, LATENT).count()
    forward, backward = measured(network)
    assert flops.linear_forward == forward["linear"]
    assert flops.linear_backward == backward["linear"]


@pytest.mark.parametrize("train", [[], RECIPE, [*RECIPE, "action2llm", "llm2action", "action_modality_embed"]])
def test_products_with_robot_actions_equal_what_pytorch_counts(train):
    network = network_of(train, action_gen=True, max_action_dim=6, num_embodiment_domains=3)
    flops = StepCounter(network, TEXT, [length + 5 for length in LATENT], action_products=10).count()
    forward, backward = measured(network)
    assert flops.linear_forward == forward["linear"]
    assert flops.linear_backward == backward["linear"]


def test_attention_equals_what_pytorch_counts_less_the_masked_half():
    """All trained: the backward pass has twice the products of the forward pass."""
    network = network_of([])
    flops = StepCounter(network, TEXT, LATENT).count()
    forward, backward = measured(network)
    layers = network.config.num_hidden_layers - 1  # of text attention; nobody reads the text of the last
    masked = layers * sum(4 * 4 * 8 * (n * n - n * (n + 1) // 2) for n in TEXT)
    assert flops.attention_forward == forward["attention"] - masked
    assert flops.attention_backward == backward["attention"] - 2 * masked
    assert flops.attention_backward == 2 * flops.attention_forward


def test_with_a_frozen_text_tower_its_keys_and_values_need_no_gradient():
    flops = StepCounter(network_of(RECIPE), TEXT, LATENT).count()
    unit, layers = 2 * 4 * 8, 3
    own, text = sum(g * g for g in LATENT), sum(g * t for g, t in zip(LATENT, TEXT, strict=True))
    assert flops.attention_backward == layers * unit * (4 * own + 2 * text)
