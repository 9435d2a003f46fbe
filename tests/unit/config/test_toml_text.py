"""The position scanner: the place of every key and value, in every way of writing TOML."""

from __future__ import annotations

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.config.toml.toml_text import find_positions

TEXT = """\
# a comment with [brackets] = "x"
top = 1
[optimizer]   # comment
lr = 1e-4 # after
"quoted.key" = 'lit#eral'
betas = [ 0.9, # first
  0.99 ]
text = \"\"\"multi
[not.a.table]
x = 1\"\"\"
inline = { a = 1, "b" = [1, {c = 2}] }
a.b . "c d" = 3
[ model . "x.y" ]
z = true
[[custom.items]]
k = 1
[[custom.items]]
k = 2
[custom.items.sub]
deep = 1979-05-27T07:32:00
"""


def test_every_key_is_found_where_it_stands() -> None:
    spans = find_positions(TEXT, "f.toml")
    lines = TEXT.split("\n")

    def shown(*path: str | int) -> tuple[str, str]:
        span = spans[path]
        return tuple(  # type: ignore[return-value]
            lines[p.line - 1][p.column - 1 : p.column - 1 + p.length] for p in (span.key, span.value)
        )

    assert shown("top") == ("top", "1")
    assert shown("optimizer") == ("optimizer", "optimizer")
    assert shown("optimizer", "lr") == ("lr", "1e-4")
    assert shown("optimizer", "quoted.key") == ('"quoted.key"', "'lit#eral'")
    assert shown("optimizer", "betas", 0)[1] == "0.9"
    assert shown("optimizer", "betas", 1)[1] == "0.99"
    assert spans["optimizer", "betas", 1].value.line == 7
    assert shown("optimizer", "inline", "b", 1, "c") == ("c", "2")
    assert shown("optimizer", "a", "b", "c d") == ('a.b . "c d"', "3")
    assert shown("model", "x.y", "z") == ("z", "true")
    assert shown("custom", "items", 1, "k") == ("k", "2")
    assert shown("custom", "items", 1, "sub", "deep") == ("deep", "1979-05-27T07:32:00")
    assert not any("not" in path for path in spans)


KEYS = st.sampled_from(["a", "b", "c", "x.y", "d e", "é", 'q"q'])
SCALARS = st.one_of(
    st.integers(-99, 99), st.booleans(), st.text(alphabet="ab#[]{}=,'\\ \"", max_size=6), st.floats(0, 9)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, list):
        return "[ " + ", # c ]\n".join(write(item) for item in value) + "\n]"
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{quote(key)} = {write(item)}" for key, item in value.items()).replace("\n", " ") + " }"
        )
    return str(value)


def paths(value: object, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path, *(found for key, item in items for found in paths(item, (*path, key)))}


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3))
@settings(max_examples=150)
def test_the_scanner_finds_exactly_the_paths_that_the_parser_finds(table: dict[str, dict[str, object]]) -> None:
    text = "".join(
        f"[{quote(name)}]\n" + "".join(f"{quote(k)} = {write(v)}\n" for k, v in body.items())
        for name, body in table.items()
    )
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # a comment of a list inside an inline table
        return
    assert set(find_positions(text, "f")) == paths(parsed) - {()}
