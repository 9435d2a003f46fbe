"""Folders of torch.distributed.checkpoint from anywhere: tensors are read, nothing that is stored with them runs."""

from __future__ import annotations

import io
import pickle
import tracemalloc
from collections import OrderedDict
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from worldsmith.checkpoint.dcp.dcp_folder import planner_of, save_part
from worldsmith.checkpoint.dcp.tensor_reader import load_part, stored_shapes
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError

TENSORS = {"net.a": torch.arange(6.0).view(2, 3), "net.b": torch.ones(2).bfloat16(), "net.c": torch.tensor(3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_part(tmp_path / "base" / "model", planner_of(TENSORS))
    return tmp_path / "base"


class Payload:
    """Unpickling it makes the file `mark`."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def read(folder: Path) -> dict[str, torch.Tensor]:
    state = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    load_part(folder, state, no_dist=True)
    return state


def test_what_pytorch_writes_is_read(folder: Path, tmp_path: Path) -> None:
    """Our own folders, and one of `torch.distributed.checkpoint.save`, nested and with plain objects in it."""
    assert all(torch.equal(value, TENSORS[name]) for name, value in read(folder / "model").items())
    nested = {"net": {"a": TENSORS["net.a"], "steps": [1, TENSORS["net.b"]], "lr": 0.1}}
    dcp.save(nested, checkpoint_id=tmp_path / "theirs", no_dist=True)
    assert stored_shapes(tmp_path / "theirs") == {"net.a": [2, 3], "net.steps.1": [2]}
    state = {"net.a": torch.zeros(2, 3)}
    load_part(tmp_path / "theirs", state, no_dist=True)
    assert torch.equal(state["net.a"], TENSORS["net.a"])


def test_what_other_writers_leave_out_or_add_is_no_damage(folder: Path) -> None:
    """No storage_meta (torch puts an empty one there), an ordered dict, and the properties of older versions."""
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    file = folder / "model" / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    metadata.storage_meta = None
    metadata.planner_data = OrderedDict(metadata.planner_data or {})
    for name, entry in metadata.state_dict_metadata.items():
        metadata.state_dict_metadata[name] = replace(entry, properties=TensorProperties(entry.properties.dtype))
    file.write_bytes(pickle.dumps(metadata))
    assert all(torch.equal(value, TENSORS[name]) for name, value in read(folder / "model").items())
    del metadata.storage_meta
    file.write_bytes(pickle.dumps(metadata))
    assert stored_shapes(folder / "model")["net.a"] == [2, 3]


class Attribute:
    """Pickled as the attribute of something, like the members of enumerations by Python 3.11.2."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> Any:
        return getattr, (self.owner, self.name)


class AsPython3112(pickle._Pickler):
    """Writes enumerations as Debian's Python 3.11.2 does."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        super().save(Attribute(type(obj), obj.name) if isinstance(obj, Enum) else obj, save_persistent_id)


def test_enumerations_as_other_pythons_write_them_are_read(folder: Path) -> None:
    file = folder / "model" / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    stream = io.BytesIO()
    AsPython3112(stream).dump(metadata)
    assert b"getattr" in stream.getvalue()
    file.write_bytes(stream.getvalue())
    assert all(torch.equal(value, TENSORS[name]) for name, value in read(folder / "model").items())


@pytest.mark.parametrize(
    ("owner", "name"), [(Metadata, "__init__"), (_MEM_FORMAT_ENCODING, "__class__"), (Path(), "touch")]
)
def test_attributes_of_other_things_are_refused(folder: Path, owner: Any, name: str) -> None:
    (folder / "model" / ".metadata").write_bytes(pickle.dumps(Attribute(owner, name)))
    with pytest.raises(UserError, match=r"model/\.metadata is damaged, or was not written by"):
        stored_shapes(folder / "model")


def test_code_beside_the_tensors_never_runs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through every way in: listing, reading, opening as weights, `worldsmith convert`."""
    mark = tmp_path / "ran"
    (folder / "model" / ".metadata").write_bytes(pickle.dumps(Payload(mark)))
    for way in (
        lambda: stored_shapes(folder / "model"),
        lambda: read(folder / "model"),
        lambda: open_weights(folder),
    ):
        with pytest.raises(UserError, match=r"model/\.metadata .*(Path\.touch|getattr).*not loaded"):
            way()
    assert main(["convert", str(folder), "-o", str(tmp_path / "out")]) == 2
    assert ".metadata" in capsys.readouterr().err
    assert not mark.exists()


def test_an_object_in_the_place_of_a_tensor_never_runs(folder: Path, tmp_path: Path) -> None:
    """PyTorch unpickles entries that are marked as plain objects; such an entry is not taken for a tensor's."""
    mark = tmp_path / "ran"
    metadata = dcp.FileSystemReader(folder / "model").read_metadata()
    metadata.state_dict_metadata["net.a"] = dcp.metadata.BytesStorageMetadata()
    place = next(index for index in metadata.storage_data if index.fqn == "net.a")
    torch.save(Payload(mark), folder / "model" / "payload")
    info = replace(metadata.storage_data.pop(place), relative_path="payload", offset=0)
    info = replace(info, length=(folder / "model" / "payload").stat().st_size)
    metadata.storage_data[dcp.metadata.MetadataIndex("net.a")] = info
    (folder / "model" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UserError, match=r"net\.a"):
        read(folder / "model")
    assert not mark.exists()


@given(st.data())
def test_garbage_is_a_mistake_of_the_user(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Other bytes are refused with UserError; damaged ones too, or they describe tensors; whole ones are read."""
    folder = tmp_path_factory.mktemp("garbage")
    save_part(folder, planner_of({"net.a": torch.ones(2)}))
    whole = (folder / ".metadata").read_bytes()
    kind = data.draw(st.sampled_from(["other", "damaged", "whole"]))
    content = bytearray(data.draw(st.binary(max_size=60)) if kind == "other" else whole)
    if kind == "damaged":
        content[data.draw(st.integers(0, 100_000)) % len(content)] = data.draw(st.integers(0, 255))
    (folder / ".metadata").write_bytes(content)
    try:
        shapes = stored_shapes(folder)
    except UserError as error:
        shapes = str(error)  # type: ignore[assignment]
    if kind == "whole":
        assert shapes == {"net.a": [2]}
    elif kind == "other" or isinstance(shapes, str):
        assert str(folder) in shapes
    else:
        assert all(isinstance(name, str) and {int} >= {*map(type, shape)} for name, shape in shapes.items())


def test_a_missing_file_of_tensors_is_named(folder: Path) -> None:
    next((folder / "model").glob("*.distcp")).unlink()
    with pytest.raises(UserError, match=r"model cannot be read.*__0_0\.distcp"):
        read(folder / "model")


def test_a_number_of_an_object_far_above_the_length_is_refused_before_memory_is_taken(folder: Path) -> None:
    """The unpickler of Python allocates an array up to that number, here of 1 GiB."""
    protocol, frame, body = (content := (folder / "model" / ".metadata").read_bytes())[:2], content[2:11], content[11:]
    assert frame[:1] == pickle.FRAME
    body = body.replace(pickle.MEMOIZE, pickle.LONG_BINPUT + (2**26).to_bytes(4, "little"), 1)
    (folder / "model" / ".metadata").write_bytes(protocol + body)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"\.metadata is damaged"):
            read(folder / "model")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
