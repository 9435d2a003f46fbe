"""`worldsmith lineage`: the chain behind a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.files.fingerprint import fingerprint
from worldsmith.monitor.lineage import Input, read_lineage, write_lineage
from worldsmith.tools.lineage.show_lineage import ShowLineage


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """train → export → evaluate."""
    run, export, scores = (tmp_path / name for name in ("run", "export", "scores [1]"))
    checkpoint = run / "checkpoints" / "iter_000000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "net.distcp").write_bytes(b"trained")
    (tmp_path / "chats.json").write_text("[]", encoding="utf-8")
    data = Input("dataset", tmp_path / "chats.json", {"records": 0})
    write_lineage(run, action="train", settings={}, inputs=[Input("base", "org/name"), data])
    export.mkdir()
    (export / "config.json").write_text("{}", encoding="utf-8")
    write_lineage(export, action="export", settings={}, inputs=[Input("model", checkpoint)], outputs=["."])
    scores.mkdir()
    (scores / "results.json").write_text("[]", encoding="utf-8")
    write_lineage(
        scores, action="evaluate", settings={}, inputs=[Input("model", export), data], outputs=["results.json"]
    )
    return scores


def draw(place: Path) -> tuple[list[str], int]:
    result = ShowLineage.Config(result=str(place)).build().run()
    return list(result.lines), result.code


def test_the_tree(scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, code = draw(scores)
    chats = fingerprint(tmp_path / "chats.json").removeprefix("sha256:")[:8]
    assert code == 0
    assert [line[: line.index("(id")] if "(id" in line else line for line in lines] == [
        f"evaluate {scores} ",
        f"├── wrote {scores}/results.json [{chats}]",
        f"├── model {tmp_path}/export [{fingerprint(tmp_path / 'export')[7:15]}]",
        f"│   └── export {tmp_path}/export ",
        f"│       ├── wrote {tmp_path}/export [{fingerprint(tmp_path / 'export')[7:15]}]",
        f"│       └── model {tmp_path}/run/checkpoints/iter_000000004 "
        f"[{fingerprint(tmp_path / 'run' / 'checkpoints' / 'iter_000000004')[7:15]}]",
        f"│           └── train {tmp_path}/run ",
        "│               ├── base org/name  <- not on this machine when it was recorded",
        f"│               └── dataset {tmp_path}/chats.json [{chats}]",
        f"└── dataset {tmp_path}/chats.json [{chats}]",
        "inputs are complete and unchanged",
    ]
    assert draw(scores / "results.json")[0] == draw(scores / "lineage.json")[0] == lines, "a file that it wrote"
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path))
    assert draw(Path(read_lineage(scores).id))[0] == lines, "by its id"
    assert draw(tmp_path / "run" / "checkpoints" / "iter_000000004")[0][0].startswith(f"train {tmp_path}/run ")


def test_what_has_changed_or_is_gone(scores: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "iter_000000004" / "net.distcp").write_bytes(b"Trained")
    (tmp_path / "chats.json").unlink()
    lines, code = draw(scores)
    assert (code, lines[-1]) == (1, "missing or changed: 3")
    assert sum(line.endswith("<- is missing") for line in lines) == 2
    assert sum(line.endswith("<- has changed since") for line in lines) == 1


def test_the_command(scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lineage", str(scores), "--json"]) == 0
    shown = capsys.readouterr().out
    assert '"made_by": {' in shown
    assert main(["lineage", str(tmp_path / "nothing")]) == 2
    assert "RESULT" in capsys.readouterr().err
    assert main(["lineage", str(tmp_path)]) == 2
    assert "its inputs were not recorded" in capsys.readouterr().err
