"""Generates answers of a vision-language model in batches, with a key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from worldsmith.families.vision_language.inputs import Conversation
from worldsmith.families.vision_language.network.backbone import visual_of
from worldsmith.models.decoding import GREEDY, Decoding

NAMES = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
"""Names of the (patches, grid sizes) arguments of transformers models, by kind of media."""


@torch.no_grad()
def generate_tokens(
    network: Any,
    prompts: Sequence[Conversation],
    *,
    normalize: Callable[[Tensor, str], Tensor],
    pad_token: int,
    max_new_tokens: int,
    device: torch.device,
    decoding: Decoding = GREEDY,
    seeds: Sequence[int] = (),
) -> list[list[int]]:
    """Generates the tokens that follow each prompt, including the end token; rows are padded on the left.

    Args:
        network: The transformers model.
        prompts: Conversations without the answer.
        normalize: Converts uint8 patches of an "image" or "video" to float32.
        pad_token: Id of the padding token.
        max_new_tokens: Max number of generated tokens per prompt.
        device: Device of the network.
        decoding: Settings of token selection.
        seeds: Seed of each prompt, required if tokens are sampled (`decoding.temperature` above 0); (): no seeds.

    Returns:
        Token ids of each answer, without padding.
    """
    from transformers import LogitsProcessorList

    longest = max(len(prompt.input_ids) for prompt in prompts)

    def rows(values: Sequence[Tensor], fill: int) -> Tensor:
        return torch.stack([F.pad(row, (longest - len(row), 0), value=fill) for row in values]).to(device)

    given: dict[str, Any] = {
        "input_ids": rows([prompt.input_ids for prompt in prompts], pad_token),
        "attention_mask": rows([torch.ones_like(prompt.input_ids) for prompt in prompts], 0),
    }
    if visual_of(network) is not None:
        given["mm_token_type_ids"] = rows([prompt.token_types for prompt in prompts], 0)
        given |= media_inputs(prompts, normalize=normalize, dtype=network.dtype, device=device)
        seconds = [prompt.video_seconds for prompt in prompts if prompt.video_seconds is not None]
        if seconds and hasattr(network.config.vision_config, "tokens_per_second"):
            given["second_per_grid_ts"] = torch.cat(seconds).to(device)
    processors = [GumbelSampling(decoding, seeds)] if decoding.temperature else []
    out = network.generate(
        **given,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        repetition_penalty=decoding.repetition_penalty,
        logits_processor=LogitsProcessorList(processors),
        pad_token_id=pad_token,
    )
    return [trim(row, pad_token) for row in out[:, longest:].tolist()]


class GumbelSampling:
    """Logits processor that turns argmax decoding into sampling, with independent noise per row.

    The argmax of logits plus Gumbel noise is a sample from their softmax (Gumbel 1954). A row's samples do not depend
    on the rest of the batch.

    Args:
        decoding: Settings of token selection, of which temperature (above 0) and top-p are used.
        seeds: Seed of the noise of each row.
    """

    def __init__(self, decoding: Decoding, seeds: Sequence[int]) -> None:
        from transformers import TopPLogitsWarper

        self.temperature = decoding.temperature
        self.top_p = TopPLogitsWarper(decoding.top_p) if decoding.top_p < 1 else None
        self.streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Returns next-token scores [rows, vocabulary] with temperature, top-p and Gumbel noise applied.

        Args:
            ids: Token ids so far, [rows, tokens].
            scores: Logits of the next token, [rows, vocabulary].
        """
        scores = scores.float() / self.temperature
        scores = scores if self.top_p is None else self.top_p(ids, scores)
        even = torch.stack([torch.rand(scores.shape[-1], generator=stream) for stream in self.streams])
        return scores - torch.log(-torch.log(even.clamp(1e-20, 1 - 1e-7))).to(scores.device)


def media_inputs(
    prompts: Sequence[Conversation],
    *,
    normalize: Callable[[Tensor, str], Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Returns the image and video arguments of a transformers model for a batch of prompts, by argument name.

    If no prompt has images, the arguments for images are omitted; the same applies to videos.

    Args:
        prompts: Conversations without the answer.
        normalize: Converts uint8 patches of an "image" or "video" to float32.
        dtype: Dtype of the patches.
        device: Device of the arguments.
    """
    given = {}
    for kind, (patches, grids) in NAMES.items():
        own = [(getattr(prompt, f"{kind}_patches"), getattr(prompt, f"{kind}_grids")) for prompt in prompts]
        own = [(rows, grid) for rows, grid in own if grid is not None and len(grid)]
        if own:
            given[patches] = normalize(torch.cat([rows for rows, _ in own]).to(device), kind).to(dtype)
            given[grids] = torch.cat([grid for _, grid in own]).to(device)
    return given


def trim(tokens: list[int], pad_token: int) -> list[int]:
    """Returns the tokens of an answer without the padding tokens at its end."""
    while tokens and tokens[-1] == pad_token:
        tokens = tokens[:-1]
    return tokens
