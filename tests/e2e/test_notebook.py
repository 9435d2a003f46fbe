"""examples/notebook.ipynb: its cells run in order, in this process, and show a loss curve and a video."""

from __future__ import annotations

import ast
import base64
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

import worldsmith

NOTEBOOK = json.loads((Path(__file__).parents[2] / "examples/notebook.ipynb").read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
SHORTER = {"max_iter = 60": "max_iter = 2", "num_steps=8": "num_steps=2"}


def run_cell(code: str, namespace: dict[str, Any]) -> Any:
    """Runs a cell as a notebook does; returns the value of the expression at its end, or None."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), namespace)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)


def test_the_cells_run_and_show_the_loss_and_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WORLDSMITH_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    assert all("".join(CODE).count(text) == 1 for text in SHORTER)
    shown = []
    for code in CODE:
        for text, shorter in SHORTER.items():
            code = code.replace(text, shorter)
        shown.append(run_cell(code, namespace))
        if "trainer.train()" in code:
            assert shown[-1] is worldsmith.Outcome.FINISHED
            assert run_cell(code, namespace) is worldsmith.Outcome.FINISHED  # the cell may run again
    *_, curve, video = shown
    page = html.unescape(re.findall(r'<iframe [^>]*srcdoc="([^"]*)"', curve._repr_html_())[0])
    assert "training loss" in page
    losses = ",".join(str(line["loss"]) for line in namespace["steps"])
    assert f'[["x",[1,2]],["y",[{losses}]]]' in page.replace(" ", "")
    (data,) = re.findall(r'<video [^>]*src="data:video/mp4;base64,([^"]+)"', video._repr_html_())
    assert base64.b64decode(data)[4:8] == b"ftyp"


def test_the_file_is_a_notebook_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | (
            {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        )
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
