"""Decoding of answers: token selection settings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoding:
    """Settings of token selection for text generation; the defaults select the most likely token (greedy decoding)."""

    temperature: float = 0.0
    """Divisor of the logits before a token is sampled; 0: greedy decoding."""
    top_p: float = 1.0
    """Nucleus (top-p) sampling: total probability of the most likely tokens that are sampled from; 1: all tokens."""
    repetition_penalty: float = 1.0
    """Penalty for tokens that already occurred, also in the prompt: divisor of positive and factor of negative logits
    (Keskar et al. 2019); 1: no penalty."""
    seed: int = 0
    """Random seed of token sampling; combined with the name of the conversation."""

    def seed_of(self, key: str) -> int:
        """Returns the sampling seed of one conversation: a 63-bit hash of `seed` and the conversation's name `key`."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{key}".encode()).digest()[:8], "big") >> 1


GREEDY = Decoding()
