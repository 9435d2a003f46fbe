"""How tokens are drawn: as often as their probability says, each row for itself."""

from __future__ import annotations

import torch
from transformers import TopPLogitsWarper

from worldsmith.families.vision_language.generation import GumbelSampling
from worldsmith.models.decoding import Decoding

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]])
IDS = torch.zeros(1, 1, dtype=torch.long)
DRAWS = 4000


def drawn(decoding: Decoding) -> torch.Tensor:
    """How often each token is drawn, of DRAWS rows."""
    found = GumbelSampling(decoding, range(DRAWS))(IDS.expand(DRAWS, 1), LOGITS.expand(DRAWS, -1)).argmax(dim=-1)
    return torch.bincount(found, minlength=5) / DRAWS


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """Within four standard deviations of a share, for the logits divided by the temperature."""
    for temperature in (1.0, 2.0):
        expected = torch.softmax(LOGITS[0] / temperature, dim=-1)
        found = drawn(Decoding(temperature=temperature))
        assert ((found - expected).abs() < 4 * (expected * (1 - expected) / DRAWS).sqrt()).all(), temperature


def test_only_the_likeliest_are_drawn() -> None:
    kept = torch.isfinite(TopPLogitsWarper(0.8)(IDS, LOGITS))[0]
    assert kept.tolist() == [True, False, False, False, True]
    assert (drawn(Decoding(temperature=1.0, top_p=0.8)) > 0).tolist() == kept.tolist()


def test_a_row_does_not_depend_on_its_batch() -> None:
    decoding = Decoding(temperature=1.0)
    together = GumbelSampling(decoding, [1, 2, 3])(IDS.expand(3, 1), LOGITS.expand(3, -1))
    alone = GumbelSampling(decoding, [2])(IDS, LOGITS)
    assert torch.equal(together[1:2], alone)
    assert not torch.equal(together[0], together[1])


def test_seeds_are_those_of_conversations() -> None:
    one, other = Decoding(seed=1), Decoding(seed=2)
    seeds = [one.seed_of("a"), one.seed_of("b"), other.seed_of("a")]
    assert len(set(seeds)) == 3
    assert seeds == [Decoding(seed=1, temperature=3).seed_of("a"), one.seed_of("b"), other.seed_of("a")]
    assert all(0 <= seed < 2**63 for seed in seeds)
