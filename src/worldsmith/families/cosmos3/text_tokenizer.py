"""`TextTokenizer`: tokenizes captions with a chat template, and has the two special ids that packing appends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worldsmith.config import Configurable
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import (
    SubstituteComponent,
    find_layout,
    find_layout_without_download,
    tokenizer_files,
)

VISION_START = "<|vision_start|>"
FILES = ("tokenizer_config.json", "tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json",
         "added_tokens.json", "chat_template*")  # fmt: skip
"""Tokenizer files in a folder."""
SUBFOLDER = "text_tokenizer"
PLACES = (tuple(f"{SUBFOLDER}/{file}" for file in FILES), FILES)
"""Locations of the tokenizer in a repository: a pipeline's subfolder, or the root."""


class TextTokenizer(Configurable):
    """Tokenizer of Hugging Face with a chat template, for captions.

    Args:
        config: Location of the tokenizer.

    Raises:
        FileNotFoundError: If the folder or repository does not exist or has no tokenizer.
        ValueError: If the tokenizer lacks a chat template, an end-of-sequence token or `<|vision_start|>`.
    """

    class Config(Configurable.Config):
        path: str = "${asset:tiny_tokenizer}"
        """Path or address of a folder with tokenizer.json, tokenizer_config.json and the chat template, or a hub
        repository's org/name."""

        def substitute(self) -> SubstituteComponent:
            """Returns the built-in tokenizer that `worldsmith plan` uses if the files in `path` are missing."""
            return SubstituteComponent("path", "a built-in tokenizer", PLACES, tokenizer_files("tiny_tokenizer"))

        def check_files(self) -> None:
            """Raises FileNotFoundError if the tokenizer does not exist; downloads no files."""
            found = find_layout_without_download(self.path, PLACES, field="text_tokenizer.path")
            if found is not None:
                find_tokenizer_files(found)

    def __init__(self, config: Config) -> None:
        folder = self.folder = find_tokenizer(config.path)
        from transformers import AutoTokenizer

        self.config = config
        self.tokenizer = load_from_folder(AutoTokenizer, folder)
        if self.tokenizer.chat_template is None:
            raise ValueError(
                f"[E126] the tokenizer in '{folder}' has no chat template; add a chat_template.jinja file to the folder"
            )
        if self.tokenizer.eos_token_id is None:
            raise ValueError(
                f"the tokenizer in '{folder}' has no end-of-sequence token; "
                'set "eos_token" (Qwen: "<|im_end|>") in its tokenizer_config.json'
            )
        if VISION_START not in self.tokenizer.get_vocab():
            raise ValueError(
                f"the tokenizer in '{folder}' has no token '{VISION_START}', which starts the video part of a "
                "sample; use a Qwen3-VL tokenizer, or rename a reserved token to it (a new id would be outside the "
                "network's embedding table)"
            )
        self.eos_id = self.tokenizer.get_vocab()[self.tokenizer.eos_token]
        self.vision_start_id = self.tokenizer.get_vocab()[VISION_START]

    @property
    def vocab_size(self) -> int:
        """Min number of rows of an embedding table for all token ids, including added tokens."""
        return max(self.tokenizer.get_vocab().values()) + 1

    def encode(self, caption: str) -> list[int]:
        """Tokenizes a caption as a user turn and the header of the assistant's turn, without system prompt and EOS."""
        encoded: Any = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": caption}],
            tokenize=True,
            add_generation_prompt=True,
            add_vision_id=False,
            return_dict=True,
        )
        return list(encoded["input_ids"])

    def check_vocab_size(self, vocab_size: int) -> None:
        """Raises ValueError if the tokenizer has ids outside of an embedding table with `vocab_size` rows."""
        if self.vocab_size > vocab_size:
            raise ValueError(
                f"the tokenizer in '{self.config.path}' produces ids up to {self.vocab_size - 1}, but "
                f"model.config.network.vocab_size is {vocab_size}; set it to at least {self.vocab_size} or use the "
                "tokenizer that belongs to the network"
            )


def find_tokenizer(name: str) -> Path:
    """Returns the local folder of a tokenizer, a path or hub name as in `text_tokenizer.path`; downloads missing files.

    Raises:
        FileNotFoundError: If the tokenizer does not exist.
    """
    return find_tokenizer_files(find_layout(name, PLACES, field="text_tokenizer.path"))


def find_tokenizer_files(path: Path) -> Path:
    """Returns the folder with the tokenizer files: `path` itself, or the subfolder `text_tokenizer` of a pipeline.

    Raises:
        FileNotFoundError: If neither folder has tokenizer files.
    """
    for folder in (path, path / SUBFOLDER):
        if (folder / FILES[0]).is_file():
            return folder
    raise FileNotFoundError(
        f"text_tokenizer.path: no {FILES[0]} in '{path}'; use a folder written by `tokenizer.save_pretrained`, or a "
        f"pipeline with the subfolder '{SUBFOLDER}'"
    )
