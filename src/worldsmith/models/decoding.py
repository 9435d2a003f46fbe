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
    """Nucleus sampling: tokens are sampled from the most likely ones with this total probability."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that already occurred, including the prompt's, and multiplies negative ones
    (Keskar et al. 2019)."""
    seed: int = 0
    """Seed of sampling, combined with the key of the conversation."""

    def seed_of(self, key: str) -> int:
        """Returns the sampling seed of one conversation: a hash of `seed` and the conversation's key."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{key}".encode()).digest()[:8], "big") >> 1


GREEDY = Decoding()
