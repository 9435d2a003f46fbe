"""Data sets of conversations. Who imports one has all of them, since files and words name loaded classes shortly."""

from worldsmith.data.conversations.datasets import (  # noqa: F401
    llava,
    llava_onevision,
    manifest,
    messages,
    mixed,
    qa_pairs,
    saved,
)
