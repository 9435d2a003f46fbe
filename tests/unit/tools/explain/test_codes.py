"""Every error code of the package is explained, and every explanation of its own errors is a code of a message."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

import worldsmith
from worldsmith.checkpoint.dcp.tensor_reader import stored_shapes
from worldsmith.checkpoint.run.find_checkpoint import find_latest
from worldsmith.data.conversations.chat_processor import separate_template
from worldsmith.data.stream.packing import SequentialPacker
from worldsmith.data.stream.quarantine import Quarantine, Rejection
from worldsmith.data.stream.workers import DeadWorkerError, log_death
from worldsmith.distributed.coordination_group import lost_partner
from worldsmith.distributed.world import World, start_world
from worldsmith.files.errors import CODE
from worldsmith.tools.explain.causes import find_causes, patterns
from worldsmith.tools.explain.logs import split
from worldsmith.training.run_folder import RunLock

PACKAGE = Path(worldsmith.__file__).parent
TABLES = PACKAGE / "tools/explain/patterns"
OWN = {row["id"] for row in tomllib.loads((TABLES / "5_own.toml").read_text())["pattern"]}
WITHOUT_CODE = {128: "the messages are those of wandb"}
"""Explanations that no message of the package has the code of, with the reason."""
UNCODED = {
    "data/clips/inspect_clips.py": "one rejected sample: its reason is a code of its own, in quarantine.jsonl",
    "training/run_state.py": "the user has accepted the changed data with --resume-changed",
    "training/trainer.py": "a save has failed: the message quotes the SaveError, which has the code",
}
"""Files with a message that an explanation finds by its text and that has no code, with the reason."""


class Message(NamedTuple):
    """A message in the source, with 12 in place of its values."""

    file: str
    line: int
    text: str
    codes: frozenset[int]


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.FormattedValue):
        return "12"
    if isinstance(node, ast.Constant):
        return re.sub(r"%\w", "12", node.value) if isinstance(node.value, str) else ""
    return "".join(map(text_of, ast.iter_child_nodes(node)))


def messages() -> Iterator[Message]:
    """The messages of exceptions, log calls and other texts that begin with a code."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ""
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if not name.endswith("Error") and name not in ("warning", "error", "exception"):
                    continue
                text = " ".join(text_of(argument) for argument in node.args)
            elif isinstance(node, ast.Constant | ast.JoinedStr) and CODE.match(text_of(node)):
                text = text_of(node)
            if text:
                codes = frozenset(map(int, CODE.findall(text)))
                yield Message(str(path.relative_to(PACKAGE)), node.lineno, text, codes)


MESSAGES = list(messages())


def test_the_codes_of_messages_are_the_explanations_of_own_errors() -> None:
    assert set().union(*(message.codes for message in MESSAGES)) == OWN - set(WITHOUT_CODE)


def test_a_code_stands_for_one_explanation() -> None:
    ids = [id for path in TABLES.glob("*.toml") for id in re.findall(r"^id = (\d+)", path.read_text(), flags=re.M)]
    assert len(ids) == len(set(ids)) == len(patterns())
    assert not [message for message in MESSAGES if len(message.codes) > 1]


def test_a_message_with_a_known_text_has_the_code_of_its_explanation() -> None:
    uncoded = set()
    for message in MESSAGES:
        text = CODE.sub("", message.text)
        known = {id for id in OWN - set(WITHOUT_CODE) if patterns()[id].groups_in(text) is not None}
        if known and not message.codes:
            uncoded.add(message.file)
        elif known:
            assert known == message.codes, message
    assert uncoded == set(UNCODED)


def ids(text: str) -> list[int]:
    return [cause.pattern.id for cause in find_causes(split(text, "log"))]


@pytest.mark.parametrize("code", sorted(OWN))
def test_a_message_with_a_code_is_explained_by_it_whatever_it_says(code: int) -> None:
    assert ids(f"worldsmith: error: [E{code}] in other words") == [code]
    known = "the data has changed since then"
    assert ids(f"DataError: [E{code}] {known}") == [code]
    assert ids(f"error: [E199] {known}") == [109]  # a code of a later version


def test_what_is_more_specific_than_a_code_stays() -> None:
    assert ids("error: [E101] 9 of 12 samples are bad (left out: missing_file 9): it can be used") == [24]
    assert ids("[E110] the checkpoint was not saved: OSError: [Errno 28] No space left on device") == [401]
    assert set(ids("[E110] not saved to a: [E111] a partner has ended")) == {110, 111}


def bad_samples(folder: Path) -> None:
    quarantine = Quarantine(folder)
    quarantine.add(Rejection("k", "truncated", "cut", "k.mp4"))
    quarantine.check(2, max_bad_fraction=0.0, bad_samples_allowed=0)


def sample_longer_than_a_pack(folder: Path) -> None:
    SequentialPacker[int](lambda size: size, max_sequence_length=5, max_samples_per_batch=None).pack(iter([9]))


def folder_moved(folder: Path) -> None:
    lock = RunLock(folder / "run", World())
    (folder / "run").rename(folder / "elsewhere")
    lock.require_held()


def partner_lost(folder: Path) -> NoReturn:
    raise RuntimeError(lost_partner(RuntimeError("Connection closed by peer [10.0.0.7]:4")))


def damaged_checkpoints(folder: Path) -> None:
    (folder / "iter_000000001").mkdir()
    find_latest(folder, World())


def damaged_metadata(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"no pickle")
    stored_shapes(folder)


def folder_below_a_file(folder: Path) -> None:
    (folder / "file").touch()
    RunLock(folder / "file/run", World())


REAL: list[tuple[int, Callable[[Path], object]]] = [
    (101, bad_samples),
    (103, sample_longer_than_a_pack),
    (107, folder_moved),
    (111, partner_lost),
    (112, lambda folder: start_world()),
    (118, damaged_checkpoints),
    (118, damaged_metadata),
    (126, separate_template),
    (127, folder_below_a_file),
]


@pytest.mark.parametrize(("code", "fail"), REAL)
def test_real_errors_are_explained(
    code: int, fail: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # without the address of the others
    with pytest.raises(Exception, match=rf"^\[E{code}\] ") as raised:
        fail(tmp_path)
    said = f"worldsmith: error: {raised.value}"
    assert ids(said) == [code]
    assert ids(CODE.sub("", said)) == [code]  # as versions without codes have said it


def test_the_death_of_a_worker_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    log_death(DeadWorkerError(7, -9), "clip_1", 1, left_out=False)
    assert caplog.messages[0].startswith("[E104] ")
    assert ids(caplog.text) == [104]
