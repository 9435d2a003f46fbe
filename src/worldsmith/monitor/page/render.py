"""Renders `report.html`: sections from templates, curves as data for a charting library, all in one file."""

from __future__ import annotations

import functools
import importlib.util
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from worldsmith import __version__
from worldsmith.files.atomic import replacing
from worldsmith.monitor.page.formats import FILTERS

FILE = "report.html"
TEMPLATES = Path(__file__).parent / "templates"
CHARTING = ("bokeh.min.js", "bokeh-api.min.js")
"""Bokeh's scripts that the report embeds: the renderer and its API."""


@dataclass(frozen=True, slots=True)
class Section:
    """Rendered section of the HTML report; values in `html` are already escaped."""

    name: str
    """Name of the template, and ID of the section in the page."""
    title: str
    html: Markup


@dataclass(slots=True)
class Page:
    """Content of an HTML report: rendered sections, and chart data for its JavaScript."""

    title: str
    sections: Sequence[Section]
    charts: Sequence[Mapping[str, Any]]
    """One dict per chart, from `charts.charts`."""
    runs: int = 1
    """Number of compared runs."""
    at_work: bool = False
    """Whether the run is starting or running."""
    live: bool = False
    """Whether the report polls its server for updates."""
    linked: int = 0
    """Number of media files that the page links."""
    written: datetime = field(default_factory=lambda: datetime.now(UTC))

    def data(self) -> dict[str, Any]:
        """Returns data for the report's JavaScript: all fields except `sections`, and `hashes` (CRC-32 by section)."""
        hashes = {section.name: zlib.crc32(section.html.encode()) for section in self.sections}
        about = {name: value for name, value in asdict(self).items() if name != "sections"}
        return {**about, "written": self.written.isoformat(), "hashes": hashes}

    def update(self) -> str:
        """Returns the data and the sections as JSON, which an open report requests from the server."""
        return json.dumps({**self.data(), "sections": {s.name: s.html for s in self.sections}}, allow_nan=False)

    def html(self) -> str:
        """Renders the complete HTML file and returns it as a string."""
        css, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        return (
            templates()
            .get_template("page.html")
            .render(
                page=self,
                css=Markup(css),
                script=Markup(script),
                bokeh=Markup(charting_script()),
                data=Markup(in_script(self.data())),
                version=__version__,
            )
        )


def section(name: str, title: str, **values: Any) -> Section:
    """Renders a section of the report.

    Args:
        name: Name of the section and of its template in `templates/`, without suffix.
        title: Title of the section.
        values: Variables of the template; they are escaped.
    """
    return Section(name, title, Markup(templates().get_template(f"{name}.html").render(**values)))


def fact(name: str, value: str, note: str = "") -> dict[str, str]:
    """Returns one entry of the report's header: a dict with the keys `name`, `value` and `note`."""
    return {"name": name, "value": value, "note": note}


def write_html(page: Page, out: Path) -> Path:
    """Writes the report `page` to the HTML file `out`, atomically, and returns `out`.

    Raises:
        OSError: If the file cannot be written.
    """
    text = page.html()
    with replacing(out, durable=False) as aside:
        aside.write_text(text, encoding="utf-8")
    return out


@functools.cache
def templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(FILTERS)
    return environment


@functools.cache
def charting_script() -> str:
    """Returns the JavaScript of the charting library bokeh, read from its package without an import of it."""
    found = importlib.util.find_spec("bokeh")
    (place,) = (found and found.submodule_search_locations) or ["bokeh"]
    texts = [Path(place, "server/static/js", name).read_text(encoding="utf-8") for name in CHARTING]
    lines = [line for text in texts for line in text.split("\n") if not line.startswith("//# sourceMappingURL=")]
    return "\n".join(lines).replace("</script", "<\\/script")


def in_script(data: Any) -> str:
    """Formats data as JSON that is safe inside an HTML script element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
