"""Two processes, one for each branch of guidance, make what one process makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import guidance_ranks
import pytest
import torch
from launch import launch

from worldsmith.sampling.generate_videos import BranchShare, generate_latents


def test_the_latents_of_two_ranks_equal_those_of_one(tmp_path: Path) -> None:
    """Requests of several sizes, modes and negative prompts, packed: to 1e-5 of the largest value."""
    launch(Path(guidance_ranks.__file__), 2, [str(tmp_path)])
    first, second = (torch.load(tmp_path / f"latents_{rank}.pt") for rank in (0, 1))
    generator, requests = guidance_ranks.make_generator(), guidance_ranks.make_requests()
    alone = generate_latents(generator, requests, **guidance_ranks.SETTINGS)
    for ours, theirs, expected in zip(first, second, alone, strict=True):
        assert torch.equal(ours, theirs)
        assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()
    other = [replace(request, negative_prompt="dull") for request in requests]
    for ours, changed in zip(first, generate_latents(generator, other, **guidance_ranks.SETTINGS), strict=True):
        assert (ours - changed).abs().max() > 1e-3  # the comparison would see a wrong second branch


def test_without_guidance_there_is_no_branch_to_share() -> None:
    generator, requests = guidance_ranks.make_generator(), guidance_ranks.make_requests()
    share = BranchShare(0, lambda tensor: [tensor, tensor])
    with pytest.raises(ValueError, match="at guidance 1, no unconditional branch exists"):
        generate_latents(generator, requests[:1], steps=1, guidance=1.0, shift=3.0, share=share)
