"""The arithmetic of parameters agrees with a network that is built without memory."""

from __future__ import annotations

import pytest
import torch

from worldsmith.models.cosmos3.architecture import NetworkConfig, edge, nano, super_, tiny
from worldsmith.models.cosmos3.network import Cosmos3Network
from worldsmith.models.cosmos3.parameter_count import count_parameters


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("network", [tiny(), tiny(edge_style=True, vocab_size=512), edge(), nano(), super_()])
def test_count_equals_that_of_a_network_on_the_meta_device(network: NetworkConfig, heads: bool) -> None:
    network.action_gen = network.sound_gen = heads
    network.num_hidden_layers = min(network.num_hidden_layers, 6)  # the arithmetic is linear in it; building is slow
    with torch.device("meta"):
        built = Cosmos3Network(network)
    assert count_parameters(network) == sum(parameter.numel() for parameter in built.parameters())


def test_the_released_tiers_have_their_published_sizes() -> None:
    """In billions, with all heads, as the docstrings of the tiers state."""
    sizes = []
    for network in (edge(), nano(), super_()):
        network.action_gen = network.sound_gen = True
        sizes.append(round(count_parameters(network) / 1e9, 2))
    assert sizes == [3.37, 15.17, 64.02]
