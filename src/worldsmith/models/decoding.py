"""How the tokens of an answer are chosen."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoding:
    """Unchanged: the likeliest token each time."""

    temperature: float = 0.0
    """Divides the logits before a token is drawn; 0: none is drawn, the likeliest is taken."""
    top_p: float = 1.0
    """Drawn from the likeliest tokens that have this much probability together."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that are there already, the prompt's included, and multiplies negative ones
    (Keskar et al. 2019)."""
    seed: int = 0
    """Of what is drawn, together with the key of the conversation."""

    def seed_of(self, key: str) -> int:
        """That of one conversation: what it is answered with depends neither on its batch nor on its process."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{key}".encode()).digest()[:8], "big") >> 1


GREEDY = Decoding()
