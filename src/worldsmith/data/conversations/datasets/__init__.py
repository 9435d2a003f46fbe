"""Chat datasets. Importing the package loads all of them, since files and flags use short names of loaded classes."""

from worldsmith.data.conversations.datasets import (  # noqa: F401
    llava,
    llava_onevision,
    manifest,
    messages,
    mixed,
    qa_pairs,
    saved,
)
