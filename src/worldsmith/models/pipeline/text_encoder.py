"""`T5TextEncoder`: captions become states of transformers' T5 or UMT5 encoder, padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count
from worldsmith.files.fingerprint import fingerprint
from worldsmith.models.model_files import find_layout, look_for_layout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ENCODER, TOKENIZER = "text_encoder", "tokenizer"
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "spiece.model", "special_tokens_map.json",
                   "added_tokens.json")  # fmt: skip
WEIGHTS = ("config.json", "*.safetensors", "*.safetensors.index.json")
PLACES = (
    (*(f"{ENCODER}/{file}" for file in WEIGHTS), *(f"{TOKENIZER}/{file}" for file in TOKENIZER_FILES)),
    (*WEIGHTS, *TOKENIZER_FILES),
)
"""Where a repository has both: a pipeline's subfolders, or the repository itself."""
FIELD = "model.config.text_encoder.path"


class StatesCache(Protocol):
    """Where states of captions are kept."""

    def key(self, fingerprint: str, ids: Sequence[int], length: int) -> str: ...

    def get(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor | None: ...

    def put(self, key: str, encoded: Tensor) -> None: ...


class T5TextEncoder(Configurable):
    """The encoder and its tokenizer; weights are frozen.

    Every caption is cut and padded to `max_length` tokens. Without a mask the padding is read like text, with one the
    states behind the text are zeros: as a family's networks were trained. Raises FileNotFoundError or ValueError when
    there is none of the two under that path or name.
    """

    masked: ClassVar[bool] = False
    """Whether the encoder sees the text alone."""

    class Config(Configurable.Config):
        path: str = ""
        """A pipeline with text_encoder/ and tokenizer/, a folder with both in one, or a repository of the hub."""
        max_length: Count = 226
        """Tokens of every caption, end and padding included."""
        dropped_captions: Literal["zeros", "encoded"] = "zeros"
        """What a caption becomes that was emptied for guidance: zeros, or what the encoder makes of the empty text."""
        precision: Literal["bfloat16", "float32"] = "bfloat16"
        """Type of weights and arithmetic."""

        def check_files(self) -> None:
            """Raises FileNotFoundError when there is no encoder or no tokenizer; downloads none."""
            found = look_for_layout(self.path, PLACES, field=FIELD)
            if found is not None:
                inside(found)

    config: Config

    def __init__(self, config: Config) -> None:
        """The tokenizer; `load` reads the encoder."""
        config.check()
        self.config = config
        self.encoder_folder, folder = inside(find_layout(config.path, PLACES, field=FIELD))
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        for name in ("eos_token_id", "pad_token_id"):
            if getattr(self.tokenizer, name) is None:
                raise ValueError(f"{FIELD}: the tokenizer in '{folder}' has no {name}, which every caption needs")
        self.encoder: Any = None
        self.idle = 0
        """Steps since the encoder was last needed."""

    def load(self, device: str | torch.device) -> None:
        """Reads the encoder's weights onto a device."""
        import torch
        from transformers import AutoModelForTextEncoding

        self.encoder = AutoModelForTextEncoding.from_pretrained(
            str(self.encoder_folder), dtype=getattr(torch, self.config.precision), local_files_only=True
        )
        self.encoder.to(device).eval().requires_grad_(False)

    def padded(self, ids: Sequence[int]) -> list[int]:
        """`max_length` ids; of a longer caption the last one is the end token, as the tokenizer itself cuts."""
        length, end = self.config.max_length, self.tokenizer.eos_token_id
        if len(ids) >= length:
            ids = [*ids[: length - 1], end]
        return [*ids, *[self.tokenizer.pad_token_id] * (length - len(ids))]

    def states(
        self, samples: Sequence[Sequence[int]], device: str | torch.device, cache: StatesCache | None = None
    ) -> Tensor:
        """Ids of captions to their states [n, max_length, d], of which the cache has some and gets the others.

        The encoder is loaded when it is needed. Each caption is read alone, so that its bits depend on nothing else.
        """
        import torch

        found = []
        for ids in samples:
            key = cache.key(self.fingerprint, self.padded(ids), self.text_length(ids)) if cache else ""
            states = cache.get(key) if cache else None
            if states is None:
                if self.encoder is None:
                    self.load(device)
                states = self.encode(ids)
                if cache:
                    cache.put(key, states)
            found.append(states.to(device))
        return torch.stack(found)

    def encode(self, sample: Sequence[int]) -> Tensor:
        """Ids of a caption to its states [max_length, d], by the encoder that was loaded."""
        import torch

        ids = torch.tensor([self.padded(sample)], device=self.encoder.device)
        self.idle = 0
        with torch.no_grad():
            if not self.masked:
                states: Tensor = self.encoder(ids)[0][0]
                return states
            mask = (torch.arange(ids.shape[1], device=ids.device) < self.text_length(sample))[None]
            return (self.encoder(ids, attention_mask=mask.long())[0] * mask[:, :, None])[0]

    def text_length(self, ids: Sequence[int]) -> int:
        """Tokens before the padding."""
        return min(len(ids), self.config.max_length)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with everything that changes states, but for the ids."""
        return f"{fingerprint(self.encoder_folder)} {self.config.precision} masked={self.masked}"

    def release(self) -> bool:
        """Gives the encoder's memory back, until it is needed again; False: it has none."""
        held, self.encoder = self.encoder is not None, None
        return held


class UMT5TextEncoder(T5TextEncoder):
    """With a mask."""

    masked = True

    class Config(T5TextEncoder.Config):
        max_length: Count = 512
        """Tokens of every caption, end and padding included."""
        dropped_captions: Literal["zeros", "encoded"] = "encoded"
        """What a caption becomes that was emptied for guidance: zeros, or what the encoder makes of the empty text."""


def read_caption(tokenizer: Any, caption: str) -> list[int]:
    """All ids of a caption with the end token."""
    return list(tokenizer(caption).input_ids)


def inside(path: Path) -> tuple[Path, Path]:
    """The folders of the encoder and of its tokenizer. Raises FileNotFoundError when one is not there."""
    encoder, tokenizer = (path / ENCODER, path / TOKENIZER) if (path / ENCODER).is_dir() else (path, path)
    for folder, file in ((encoder, "config.json"), (tokenizer, TOKENIZER_FILES[0])):
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"{FIELD}: no {file} in '{folder}'; give a pipeline with {ENCODER}/ and {TOKENIZER}/, or a folder with "
                "the encoder and its tokenizer"
            )
    return encoder, tokenizer
