"""`RobotPolicy`: what controls a robot. It maps observations to chunks of actions in physical units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ARRANGED = ""
"""Name of the image that shows all cameras, arranged as in training."""


class RequestError(ValueError):
    """A request that a policy or its server refuses, with the HTTP status."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Inputs and outputs of a policy; its fields are JSON data."""

    cameras: Mapping[str, tuple[int, int] | None]
    """Camera name -> (height, width) in px; None: the policy resizes images of any size."""
    state: Mapping[str, int]
    """Name of each part of the state, in order -> its width; empty: the policy uses no state."""
    action_width: int
    """Number of action channels."""
    chunk_length: int
    """Number of actions in a chunk."""
    domain: str = ""
    """Domain (embodiment) of the actions; "": unnamed."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further facts about the policy, such as its run folder."""
    arranged: tuple[int, int] | None = None
    """(height, width) in px of one image of all cameras, which clients may send instead; None: it is refused."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a robot or an environment reports at one time step."""

    images: Mapping[str, np.ndarray]
    """Camera name -> uint8 [H, W, 3] in RGB; or `ARRANGED` -> the image of all cameras."""
    state: Mapping[str, np.ndarray]
    """Name of each part of the state -> float32 [width], in the order of `PolicySpec.state`; empty: no state."""
    instruction: str
    """The task as text."""
    seed: int | None = None
    """Seed of the policy's noise, so that equal observations have equal chunks; None: the policy chooses one."""

    @property
    def state_vector(self) -> np.ndarray | None:
        """The concatenated parts of the state; None if there are none."""
        return np.concatenate([*self.state.values()]) if self.state else None


class RobotPolicy(ABC):
    """Base class of robot policies. A policy server calls `predict` from one thread only."""

    spec: PolicySpec

    @abstractmethod
    def predict(self, observations: Sequence[Observation]) -> list[np.ndarray]:
        """Returns a chunk of actions, float [chunk_length, action_width] in physical units, for each observation.

        Raises RequestError for an observation that the policy refuses, such as one with too long an instruction.
        """

    def __call__(self, observation: Observation) -> np.ndarray:
        """Returns the chunk of actions for one observation."""
        return self.predict([observation])[0]
