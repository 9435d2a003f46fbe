"""What a CogVideoX model was trained with, for schedulers that sample from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """The fields of `VPrediction.Config` of these names; the defaults are those of CogVideoX-5B."""

    num_timesteps: int = 1000
    beta_start: float = 0.00085
    beta_end: float = 0.012
    shift_scale: float = 1.0
    zero_terminal_snr: bool = True
