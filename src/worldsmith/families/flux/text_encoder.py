"""`FluxTextEncoder`: encodes captions to the pooled state of a CLIP encoder and the states of a T5 encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.config.declare.ranges import Count
from worldsmith.families.diffusers_pipeline.published import CLIP_L, T5_XXL
from worldsmith.families.diffusers_pipeline.text_encoder import (
    FIELD,
    T5TextEncoder,
    find_encoder_folders,
    in_pipeline,
    load_encoder,
    load_tokenizer,
    read_caption,
)
from worldsmith.files.fingerprint import fingerprint
from worldsmith.models.model_files import (
    SubstituteComponent,
    find_layout,
    find_layout_without_download,
    tokenizer_files,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CLIP, T5 = ("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")
"""Pipeline subfolders (encoder, tokenizer) of the CLIP and of the T5 text encoder."""
PLACES = (in_pipeline(CLIP, T5),)
CLIP_TOKENS = 77
"""Number of CLIP tokens of every caption, including special tokens and padding; longer captions are truncated."""


class FluxTextEncoder(T5TextEncoder):
    """Frozen text encoders of FLUX.1, CLIP and T5; the weights are loaded on first use.

    The token ids of a caption are those of CLIP, padded, followed by those of T5. The hidden states are one tensor [1 +
    max_length, d]: CLIP's pooled state, padded with zeros, then T5's hidden states.

    Args:
        config: Location and settings of the encoders.
    """

    class Config(T5TextEncoder.Config):
        path: str = ""
        """A pipeline with text_encoder/ and tokenizer/ (CLIP), text_encoder_2/ and tokenizer_2/ (T5), or a hub
        repository."""
        max_length: Count = 512
        """Number of T5 tokens of every caption, including the end token and padding: 512 for dev, 256 for schnell."""
        dropped_captions: Literal["zeros", "encoded"] = "encoded"
        """Embedding of captions that are dropped for classifier-free guidance: zeros, or that of the empty caption."""

        @property
        def caption_ids(self) -> int:
            return CLIP_TOKENS + self.max_length

        def substitute(self) -> SubstituteComponent:
            contents = {
                f"{CLIP[0]}/config.json": CLIP_L,
                f"{T5[0]}/config.json": T5_XXL,
                **tokenizer_files("tiny_flux/tokenizer", CLIP[1]),
                **tokenizer_files("tiny_flux/tokenizer_2", T5[1]),
            }
            return SubstituteComponent("path", "the text encoders of CLIP ViT-L/14 and T5 v1.1 XXL", PLACES, contents)

        def check_files(self) -> None:
            """Raises FileNotFoundError if one of the encoders or tokenizers does not exist; downloads no files."""
            found = find_layout_without_download(self.path, PLACES, field=FIELD)
            if found is not None:
                find_encoder_folders(found, *CLIP)
                find_encoder_folders(found, *T5)

    def __init__(self, config: Config) -> None:
        """Loads the tokenizers; the weights of the encoders are loaded by `load`."""
        config.check()
        self.config = config
        folder = find_layout(config.path, PLACES, field=FIELD)
        self.clip_folder, clip = find_encoder_folders(folder, *CLIP)
        self.encoder_folder, t5 = find_encoder_folders(folder, *T5)
        self.clip_tokenizer, self.tokenizer = load_tokenizer(clip), load_tokenizer(t5)
        self.clip: Any = None

    @property
    def reader(self) -> Callable[[str], list[int]]:
        return partial(tokenize_for_both, self.clip_tokenizer, self.tokenizer)

    @property
    def parts(self) -> dict[str, Any]:
        return dict(zip((*CLIP, *T5), (self.clip, self.clip_tokenizer, self.encoder, self.tokenizer), strict=True))

    @property
    def modules(self) -> list[Any]:
        return [*super().modules, *([] if self.clip is None else [self.clip])]

    def load(self, device: str | torch.device) -> None:
        super().load(device)
        self.clip = load_encoder(self.clip_folder, self.config.precision, device)

    def padded(self, ids: Sequence[int]) -> list[int]:
        ids = ids or self.reader("")
        return [*ids[:CLIP_TOKENS], *super().padded(ids[CLIP_TOKENS:])]

    def encode(self, sample: Sequence[int]) -> Tensor:
        import torch
        from torch.nn.functional import pad

        ids = torch.tensor([self.padded(sample)], device=self.encoder.device)
        self.idle = 0
        with torch.no_grad():
            pooled = self.clip(ids[:, :CLIP_TOKENS]).pooler_output
            states = self.encoder(ids[:, CLIP_TOKENS:])[0][0]
        return torch.cat([pad(pooled, (0, states.shape[1] - pooled.shape[1])), states])

    def text_length(self, ids: Sequence[int]) -> int:
        return super().text_length(ids[CLIP_TOKENS:])

    @cached_property
    def fingerprint(self) -> str:
        return f"{fingerprint(self.clip_folder)} {super().fingerprint}"

    def release(self) -> bool:
        self.clip = None
        return super().release()


def tokenize_for_both(clip: Any, t5: Any, caption: str) -> list[int]:
    """Returns the token ids of a caption for CLIP, truncated and padded, followed by all token ids for T5.

    Args:
        clip: Tokenizer of CLIP.
        t5: Tokenizer of T5.
        caption: The caption.
    """
    first = clip(caption, padding="max_length", max_length=CLIP_TOKENS, truncation=True).input_ids
    return [*first, *read_caption(t5, caption)]
