"""`T5TextEncoder`: captions become states of transformers' T5 encoder, padded to one length, without a mask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count
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


class T5TextEncoder(Configurable):
    """The encoder and its tokenizer; weights are frozen.

    Every caption is cut and padded to `max_length` tokens and the padding is read like text: so these networks were
    trained. Raises FileNotFoundError or ValueError when there is none of the two under that path or name.
    """

    class Config(Configurable.Config):
        path: str = ""
        """A pipeline with text_encoder/ and tokenizer/, a folder with both in one, or a repository of the hub."""
        max_length: Count = 226
        """Tokens of every caption, end and padding included; that of model.config.network.max_text_seq_length."""
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

    def load(self, device: str | torch.device) -> None:
        """Reads the encoder's weights onto a device."""
        import torch
        from transformers import T5EncoderModel

        self.encoder = T5EncoderModel.from_pretrained(
            str(self.encoder_folder), dtype=getattr(torch, self.config.precision), local_files_only=True
        )
        self.encoder.to(device).eval().requires_grad_(False)

    def padded(self, ids: Sequence[int]) -> list[int]:
        """`max_length` ids; of a longer caption the last one is the end token, as the tokenizer itself cuts."""
        length, end = self.config.max_length, self.tokenizer.eos_token_id
        if len(ids) >= length:
            ids = [*ids[: length - 1], end]
        return [*ids, *[self.tokenizer.pad_token_id] * (length - len(ids))]

    def encode(self, samples: Sequence[Sequence[int]]) -> Tensor:
        """Ids of captions to their states [n, max_length, d]."""
        import torch

        ids = torch.tensor([self.padded(sample) for sample in samples], device=self.encoder.device)
        with torch.no_grad():
            states: Tensor = self.encoder(ids)[0]
        return states


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
