"""A sample before its first step, for tests that give its noise to another sampler."""

from __future__ import annotations

from typing import Any

from worldsmith.models.video_model import InitialState, VideoModel
from worldsmith.sampling.requests import GenerationRequest, begin, read_request


def beginning(model: VideoModel, request: GenerationRequest, **settings: Any) -> InitialState:
    sampler = model.sampler(model.defaults.sampling(**settings))
    return begin(sampler, read_request(sampler, request))
