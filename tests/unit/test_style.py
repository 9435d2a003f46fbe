"""Words that `docs/style.md` replaces by standard terms do not become more frequent."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "style.md"
GENERATED = {"config_reference.md", "style.md"}
LIMITS = {"package": 1324, "docs": 617}
"""Max number of occurrences. Lower a limit when texts get better; raise none."""


def replaced_words() -> re.Pattern[str]:
    rows = re.findall(r"^\| (`.+?`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    return re.compile(rf"\b(?:{'|'.join(sorted(words, key=len, reverse=True))})\b", re.IGNORECASE)


def texts_of(source: str) -> list[str]:
    """Returns the comments and all string constants with a space, f-strings included."""
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [text for text in (*strings, *comments) if isinstance(text, str) and " " in text]


def package_texts() -> list[str]:
    files = sorted((ROOT / "src" / "worldsmith").rglob("*.py"))
    return [text for file in files for text in texts_of(file.read_text(encoding="utf-8"))]


def page_texts() -> list[str]:
    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED]
    texts = [page.read_text(encoding="utf-8") for page in (*pages, ROOT / "README.md")]
    return [re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL) for text in texts]


@pytest.mark.parametrize("name", ["package", "docs"])
def test_replaced_words_do_not_become_more_frequent(name: str) -> None:
    pattern = replaced_words()
    texts = package_texts() if name == "package" else page_texts()
    count = sum(len(pattern.findall(text)) for text in texts)
    assert count <= LIMITS[name], (
        f"{count} words of docs/style.md, at most {LIMITS[name]} expected: use the second column"
    )


def test_words_are_found_in_strings_and_comments_only() -> None:
    source = 'def say():\n    """Says whoever asks."""\n    return f"left out: {say()}"  # nothing more\n'
    assert [word.lower() for text in texts_of(source) for word in replaced_words().findall(text)] == [
        *("says", "whoever", "asks", "left out", "nothing")
    ]
