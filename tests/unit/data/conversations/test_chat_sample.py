"""A chat sample counts what the loss counts, and arrives at the other end of a pipe as it was."""

from __future__ import annotations

import pickle
from dataclasses import fields

import torch

from worldsmith.data.conversations.chat_processor import IGNORED, ChatSample


def sample(labels: list[int]) -> ChatSample:
    ids = torch.arange(len(labels))
    return ChatSample(
        key="a",
        position=3,
        num_tokens=len(labels),
        input_ids=ids,
        labels=torch.tensor(labels),
        token_types=torch.zeros_like(ids),
        video_patches=torch.randint(0, 256, (8, 1536), dtype=torch.uint8),
        video_grids=torch.tensor([[2, 2, 2]]),
    )


def test_the_first_token_is_never_supervised() -> None:
    assert sample([5, IGNORED, 7, 8]).num_supervised == 2
    assert sample([5, IGNORED]).num_supervised == 0


def test_a_sample_is_the_same_after_a_pipe() -> None:
    before = sample([IGNORED, 7, 8])
    data = pickle.dumps(before)
    assert b"_rebuild_tensor" not in data  # tensors in a pipe would need shared memory
    after = pickle.loads(data)
    for field in fields(ChatSample):
        one, other = getattr(before, field.name), getattr(after, field.name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        else:
            assert one == other
