"""The words that `docs/style.md` replaces by standard terms do not occur in the package, its pages and its examples."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "worldsmith"
PAGE = ROOT / "docs" / "style.md"
GENERATED = {"config_reference.md", "commands.md", "style.md"}
CODE = re.compile(r"```.*?```|``.*?``|`[^`\n]+`|\{[{%].*?[%}]\}|\{\w+\}", re.DOTALL)
"""Matches code in Markdown and docstrings, Jinja tags and placeholders."""
ARGUMENT = re.compile(r"^\s+\*{0,2}\w+: ", re.MULTILINE)
"""Matches the name of an argument in a docstring."""


def rows(title: str) -> list[str]:
    """Returns the code-marked words in the first column of the table below a heading of `docs/style.md`."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [
        word for row in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE) for word in re.findall(r"`(.+?)`", row)
    ]


def pattern(words: list[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})\b")


def replaced_words(text: str) -> list[str]:
    """Returns the replaced words in a text, without code, names of arguments and allowed phrases."""
    text = re.sub(r"\s+", " ", ARGUMENT.sub("", CODE.sub("`", text)))
    return pattern(rows("Words that are not used")).findall(pattern(rows("Allowed phrases")).sub("", text))


def texts_of(source: str) -> list[str]:
    """Returns the comments and all string constants with a space, f-strings included."""
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [text for text in (*strings, *comments) if isinstance(text, str) and " " in text]


def package_texts() -> dict[str, str]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(ROOT)): "\n|\n".join(texts_of(file.read_text(encoding="utf-8"))) for file in files}


def written_texts(*patterns: str) -> dict[str, str]:
    files = sorted(file for one in patterns for file in ROOT.glob(one) if file.name not in GENERATED)
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def rule_texts(files: str, *fields: str) -> dict[str, str]:
    """Returns the texts in the given fields of TOML files of the package; `match` and other fields are not texts."""
    found = sorted(PACKAGE.glob(files))
    return {
        str(file.relative_to(ROOT)): "\n|\n".join(values_of(tomllib.loads(file.read_text(encoding="utf-8")), fields))
        for file in found
    }


def values_of(node: Any, fields: tuple[str, ...]) -> Iterator[str]:
    """Yields the texts in the given fields of all tables in parsed TOML."""
    if isinstance(node, list):
        for item in node:
            yield from values_of(item, fields)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key not in fields:
                yield from values_of(value, fields)
            else:
                yield from [value] if isinstance(value, str) else value


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(package_texts(), id="package"),
        pytest.param(written_texts("docs/*.md", "*.md"), id="docs"),
        pytest.param(written_texts("examples/*.md", "examples/toml/*/*.toml", "examples/*.sh"), id="examples"),
        pytest.param(written_texts("src/worldsmith/monitor/page/templates/*.html"), id="page"),
        pytest.param(rule_texts("tools/explain/patterns/*.toml", "name", "means", "try"), id="explain"),
        pytest.param(rule_texts("dialects/*/key_rules.toml", "reason", "fix"), id="key rules"),
        pytest.param(written_texts("src/worldsmith/assets/**/*.md"), id="assets"),
    ],
)
def test_replaced_words_do_not_occur(texts: dict[str, str]) -> None:
    assert texts
    found = {name: words for name, text in texts.items() if (words := replaced_words(text))}
    assert not found, f"use the second column of docs/style.md: {found}"


def test_words_are_found_in_strings_and_comments_only() -> None:
    source = 'def say():\n    """Says whoever asks. `said`"""\n    return f"left out: {say()}"  # goes on and on\n'
    assert replaced_words("\n".join(texts_of(source))) == ["whoever", "left out", "goes on"]
    assert replaced_words("It was asked to stop.") == []
