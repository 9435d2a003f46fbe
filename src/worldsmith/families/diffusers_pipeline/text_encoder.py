"""`T5TextEncoder`: encodes captions, padded to one length, with transformers' T5 or UMT5 encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count
from worldsmith.families.diffusers_pipeline.published import T5_XXL, UMT5_XXL
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import (
    SubstituteComponent,
    find_layout,
    find_layout_without_download,
    read_settings,
    tokenizer_files,
)
from worldsmith.models.real_values import in_simulation, without_values
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.data.latent_cache import TextCache

ENCODER, TOKENIZER = "text_encoder", "tokenizer"
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "spiece.model", "vocab.json", "merges.txt",
                   "special_tokens_map.json", "added_tokens.json")  # fmt: skip
WEIGHTS = ("config.json", "*.safetensors", "*.safetensors.index.json")
FIELD = "model.config.text_encoder.path"


def in_pipeline(*parts: tuple[str, str]) -> tuple[str, ...]:
    """Returns glob patterns of text encoder and tokenizer files in a pipeline, such as "tokenizer/tokenizer.json".

    Args:
        parts: Pipeline subfolders (encoder, tokenizer) of each text encoder.
    """
    files = [f"{encoder}/{file}" for encoder, _ in parts for file in WEIGHTS]
    return (*files, *(f"{tokenizer}/{file}" for _, tokenizer in parts for file in TOKENIZER_FILES))


PLACES = (in_pipeline((ENCODER, TOKENIZER)), (*WEIGHTS, *TOKENIZER_FILES))
"""Locations of encoder and tokenizer in a repository: a pipeline's subfolders, or the root."""


class T5TextEncoder(Configurable):
    """Frozen T5 text encoder with its tokenizer; the weights are loaded on first use.

    Each caption is truncated or padded to `max_length` tokens. If `masked` is false, the encoder attends to padding as
    to text. If it is true, padding is masked, and its hidden states are zeros. Each subclass uses the variant that the
    network of its model family was trained with.

    Args:
        config: Location and settings of the encoder.

    Raises:
        FileNotFoundError: If the path or name has no encoder or no tokenizer.
        ValueError: If the tokenizer has no end token or padding token.
    """

    masked: ClassVar[bool] = False
    """Whether padding tokens are masked in the encoder."""

    class Config(Configurable.Config):
        path: str = ""
        """Path or address of a pipeline with text_encoder/ and tokenizer/ or of a folder that contains both, or a hub
        repository."""
        max_length: Count = 226
        """Number of tokens of every caption, including the end token and padding."""
        dropped_captions: Literal["zeros", "encoded"] = "zeros"
        """Embedding of captions that are dropped for classifier-free guidance: zeros, or that of the empty caption."""
        precision: Literal["bfloat16", "float16", "float32"] = "bfloat16"
        """Number format of weights and computation."""

        @property
        def caption_ids(self) -> int:
            """Max number of token ids of a caption."""
            return self.max_length

        def substitute(self) -> SubstituteComponent:
            """Returns the substitute (config, tiny tokenizer) that `worldsmith plan` uses if the files are missing."""
            contents = {f"{ENCODER}/config.json": T5_XXL, **tokenizer_files("tiny_t5", TOKENIZER)}
            return SubstituteComponent("path", "the encoder of T5 v1.1 XXL", PLACES, contents)

        def check_files(self) -> None:
            """Raises FileNotFoundError if the encoder or the tokenizer does not exist; downloads no files."""
            found = find_layout_without_download(self.path, PLACES, field=FIELD)
            if found is not None:
                find_encoder_folders(found)

    config: Config
    encoder: Any = None
    idle: int = 0
    """Number of training steps since the encoder was last used."""

    def __init__(self, config: Config) -> None:
        """Loads the tokenizer; the weights of the encoder are loaded by `load`."""
        config.check()
        self.config = config
        self.encoder_folder, folder = find_encoder_folders(find_layout(config.path, PLACES, field=FIELD))
        self.tokenizer: Any = load_tokenizer(folder)

    @property
    def reader(self) -> Callable[[str], list[int]]:
        """Function from a caption to its token ids; it can be pickled."""
        return partial(read_caption, self.tokenizer)

    @property
    def parts(self) -> dict[str, Any]:
        """The loaded encoder and its tokenizer, by their component names in a pipeline."""
        return {ENCODER: self.encoder, TOKENIZER: self.tokenizer}

    @property
    def modules(self) -> list[Any]:
        """Encoder modules that are loaded; empty before the first use and after `release`."""
        return [] if self.encoder is None else [self.encoder]

    def load(self, device: str | torch.device) -> None:
        """Loads the weights of the encoder to a device."""
        self.encoder = load_encoder(self.encoder_folder, self.config.precision, device)

    def padded(self, ids: Sequence[int]) -> list[int]:
        """Returns the token ids of a caption, padded or truncated to `max_length`.

        As in the tokenizer, a truncated caption ends with the end token.
        """
        length, end = self.config.max_length, self.tokenizer.eos_token_id
        if len(ids) >= length:
            ids = [*ids[: length - 1], end]
        return [*ids, *[self.tokenizer.pad_token_id] * (length - len(ids))]

    def states(
        self,
        samples: Sequence[Sequence[int]],
        device: str | torch.device,
        cache: TextCache | None = None,
        *,
        known: Sequence[Tensor | None] = (),
    ) -> list[Tensor]:
        """Encodes tokenized captions one by one, so that a result does not depend on the other captions.

        Args:
            samples: Token ids of each caption.
            device: Device of the result, and of the encoder if it must be loaded.
            cache: Cache of hidden states, which is read and filled; None: no cache.
            known: Hidden states of each caption from `cached_states`; None or (): the cache is read here.

        Returns:
            Hidden states [max_length, d] of each caption.
        """
        found = []
        for place, ids in enumerate(samples):
            states = known[place] if known else None
            states = self.cached_states([ids], cache)[0] if states is None else states
            if states is None:
                if self.encoder is None:
                    self.load(device)
                states = self.encode(ids)
                if cache:
                    cache.put(self.cache_key(ids, cache), states)
            found.append(states.to(device))
        return found

    def cached_states(self, samples: Sequence[Sequence[int]], cache: TextCache | None) -> list[Tensor | None]:
        """Returns the hidden states [max_length, d] of each tokenized caption that is in the cache; else None."""
        return [cache.get(self.cache_key(ids, cache)) if cache else None for ids in samples]

    def cache_key(self, ids: Sequence[int], cache: TextCache) -> str:
        return cache.key(self.fingerprint, self.padded(ids), self.text_length(ids))

    def encode(self, sample: Sequence[int]) -> Tensor:
        """Encodes the token ids of one caption to hidden states [max_length, d]; the encoder must be loaded."""
        import torch

        ids = torch.tensor([self.padded(sample)], device=self.encoder.device)
        self.idle = 0
        with torch.no_grad():
            if not self.masked:
                return self.encoder(ids)[0][0]
            mask = (torch.arange(ids.shape[1], device=ids.device) < self.text_length(sample))[None]
            return (self.encoder(ids, attention_mask=mask.long())[0] * mask[:, :, None])[0]

    def text_length(self, ids: Sequence[int]) -> int:
        """Returns the number of tokens of a caption with these token ids, truncated but without padding."""
        return min(len(ids), self.config.max_length)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of weights, precision and masking, which with the token ids determine the hidden states."""
        return f"{fingerprint(self.encoder_folder)} {self.config.precision} masked={self.masked}"

    def release(self) -> bool:
        """Frees the weights of the encoder until they are needed again; returns whether they were loaded."""
        was_loaded, self.encoder = self.encoder is not None, None
        return was_loaded


class UMT5TextEncoder(T5TextEncoder):
    """Frozen UMT5 text encoder, in which padding is masked."""

    masked = True

    class Config(T5TextEncoder.Config):
        max_length: Count = 512
        """Number of tokens of every caption, including the end token and padding."""
        dropped_captions: Literal["zeros", "encoded"] = "encoded"
        """Embedding of captions that are dropped for classifier-free guidance: zeros, or that of the empty caption."""

        def substitute(self) -> SubstituteComponent:
            contents = {f"{ENCODER}/config.json": UMT5_XXL, **tokenizer_files("tiny_umt5", TOKENIZER)}
            return SubstituteComponent("path", "the encoder of UMT5 XXL", PLACES, contents)


def read_caption(tokenizer: Any, caption: str) -> list[int]:
    """Returns all token ids of a caption, including the end token."""
    return list(tokenizer(caption).input_ids)


def load_tokenizer(folder: Path) -> Any:
    """Loads the tokenizer in a folder; raises ValueError if it has no end token or no padding token."""
    from transformers import AutoTokenizer

    tokenizer: Any = load_from_folder(AutoTokenizer, folder)
    for name in ("eos_token_id", "pad_token_id"):
        if getattr(tokenizer, name) is None:
            raise ValueError(f"{FIELD}: the tokenizer in '{folder}' has no {name}, which every caption needs")
    return tokenizer


def load_encoder(folder: Path, precision: str, device: str | torch.device) -> Any:
    """Loads the frozen text encoder in a folder.

    Args:
        folder: Folder with config.json and weights.
        precision: Dtype of the weights, such as "bfloat16".
        device: Device of the weights.

    Raises:
        UserError: If weights are not finite.
    """
    import torch
    from transformers import AutoConfig, AutoModelForTextEncoding

    dtype = getattr(torch, precision)
    read_settings(folder)
    if in_simulation():
        config = load_from_folder(AutoConfig, folder)
        make = partial(AutoModelForTextEncoding.from_config, config, dtype=dtype, trust_remote_code=False)
        return without_values(make, dtype, device).eval().requires_grad_(False)
    encoder = load_from_folder(AutoModelForTextEncoding, folder, dtype=dtype)
    require_finite(f"{FIELD}: {folder}", non_finite(encoder.state_dict()))
    return encoder.to(device).eval().requires_grad_(False)


def find_encoder_folders(path: Path, encoder: str = ENCODER, tokenizer: str = TOKENIZER) -> tuple[Path, Path]:
    """Returns the folders of a text encoder and of its tokenizer: subfolders of `path`, or `path` for both.

    Args:
        path: A pipeline, or a folder with the files of both.
        encoder: Subfolder of the encoder in a pipeline.
        tokenizer: Subfolder of the tokenizer in a pipeline.

    Raises:
        FileNotFoundError: If a folder lacks the config of the encoder or the files of the tokenizer.
    """
    folders = (path / encoder, path / tokenizer) if (path / encoder).is_dir() else (path, path)
    for folder, file in zip(folders, ("config.json", TOKENIZER_FILES[0]), strict=True):
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"{FIELD}: no {file} in '{folder}'; use a pipeline with {encoder}/ and {tokenizer}/, or a folder "
                "with the encoder and its tokenizer"
            )
    return folders
