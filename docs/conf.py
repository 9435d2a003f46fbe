"""Settings of the documentation site: `make docs` builds it into outputs/docs, and a warning is an error."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

from sphinx.application import Sphinx

from worldsmith import __version__
from worldsmith.cli.commands import COMMANDS
from worldsmith.cli.main import main

project = "Worldsmith"
author = "The Worldsmith authors"
copyright = "The Worldsmith authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["schema", "scale.json"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True  # an attribute with a documented default would be described twice otherwise

html_theme = "furo"
html_title = f"Worldsmith {version}"
html_static_path: list[str] = []
html_theme_options = {"navigation_with_keys": True}

HERE = Path(__file__).parent
COMMAND_PAGE = HERE / "commands.md"
OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\(\.\./(?P<path>[^)#\s]+)(?:#[^)]*)?\)")
"""Matches links to files of the clone that are not pages of the site."""
INCLUDED = {"CONTRIBUTING.md": "contributing.md", "examples/README.md": "examples.md", "CHANGELOG.md": "changelog.md"}


def command_page() -> str:
    """Returns the page with the help of every command."""
    os.environ["COLUMNS"] = "100"
    lines = ["# Commands\n", "The help of every command, as `worldsmith COMMAND --help` prints it.\n"]
    for name in COMMANDS:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([name, "--help"])
        lines.append(f"## worldsmith {name}\n\n```text\n{text.getvalue().strip()}\n```\n")
    return "\n".join(lines)


def write_command_page(app: Sphinx) -> None:
    text = command_page()
    if not COMMAND_PAGE.exists() or COMMAND_PAGE.read_text(encoding="utf-8") != text:
        COMMAND_PAGE.write_text(text, encoding="utf-8")


def replace_outside_links(app: Sphinx, name: str, source: list[str]) -> None:
    """Replaces links to files outside of `docs/` by the file's path, because the site does not contain these files."""

    def shown(match: re.Match[str]) -> str:
        text, path = match["text"], match["path"]
        if path in INCLUDED:
            return f"[{text}]({INCLUDED[path]})"
        return text if path in text else f"{text} (`{path}`)"

    source[0] = OUTSIDE.sub(shown, source[0])


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_command_page)
    app.connect("source-read", replace_outside_links)
