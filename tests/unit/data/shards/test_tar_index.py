"""The index of a tar against Python's tarfile and the webdataset package; damage; storages."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import fsspec
import pytest
import webdataset
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_iterator

from worldsmith.data.clips.clip_records import samples_of
from worldsmith.data.shards import addresses, tar_index
from worldsmith.data.shards.addresses import braces, find_shards, part_address, read_clip, shard_pattern, short_names
from worldsmith.data.shards.tar_index import TarIndex, index_of, read_headers
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files import remote

from .conftest import Members, tar_bytes

FORMS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}
keys = st.text("ab/é", min_size=1, max_size=4).filter(lambda k: not k.endswith("/")) | st.just("long/" * 19 + "name")
names = st.tuples(keys, st.sampled_from(["mp4", "json", "txt", "TXT", "seg.png", ""])).map(".".join)
members = st.lists(st.tuples(names, st.binary(max_size=1500)), max_size=8)


def index(content: bytes) -> TarIndex:
    return read_headers("x.tar", io.BytesIO(content), len(content))


@given(members, st.sampled_from(sorted(FORMS)))
def test_members_are_where_tarfile_finds_them(files: Members, form: str) -> None:
    content = tar_bytes(files, FORMS[form])
    found = index(content)
    with tarfile.open(fileobj=io.BytesIO(content)) as judge:
        assert [(m.name, m.start, m.size) for m in found.members] == [
            (header.name, header.offset_data, header.size) for header in judge
        ]
    assert found.fault is None
    assert [content[m.start : m.start + m.size] for m in found.members] == [data for _, data in files]


@given(members)
def test_samples_are_those_of_webdataset(files: Members) -> None:
    files = [pair for n, pair in enumerate(files) if pair[0].lower() not in {f[0].lower() for f in files[:n]}]
    content = tar_bytes(files)
    stream = ({**file, "__url__": "x"} for file in tar_file_iterator(io.BytesIO(content)))
    judge = [
        (sample["__key__"], {k: v for k, v in sample.items() if not k.startswith("__")})
        for sample in group_by_keys(stream)
    ]
    found = [
        (sample.key, {ending: content[m.start : m.start + m.size] for ending, m in sample.members.items()})
        for sample in samples_of(index(content))
    ]
    assert found == judge


@given(members.filter(bool), st.floats(0, 1))
def test_a_tar_that_is_cut_gives_what_is_before(files: Members, at: float) -> None:
    whole = tar_bytes(files)
    end = index(whole).members[-1]
    content = whole[: int(at * (end.start + end.size))]
    found = index(content)
    assert found.fault is not None
    assert found.fault[0] <= len(content)
    complete = [m for m in index(whole).members if m.start + m.size <= len(content)]
    assert found.members == complete


def test_a_damaged_header_ends_the_tar_and_says_where() -> None:
    content = bytearray(tar_bytes([(f"{n}.txt", b"text") for n in range(4)]))
    content[2 * 1024 + 20] ^= 0xFF
    found = index(bytes(content))
    assert [member.name for member in found.members] == ["0.txt", "1.txt"]
    assert found.fault == (2048, f"a damaged header at byte 2048 of {len(content)}; 2 files before it")


@pytest.mark.parametrize("size", [b"\x80" + b"\x7f" * 11, b"\xff" * 10 + b"\xf0\x00", b"\xff" * 12])
@pytest.mark.parametrize("kind", [b"0", b"x", b"L"])
def test_a_header_with_an_impossible_size_ends_the_tar(size: bytes, kind: bytes) -> None:
    """More than memory can address, or less than nothing, of a file, a pax header and a long name of GNU tar."""
    content = bytearray(tar_bytes([(f"{n}.txt", b"text") for n in range(4)], tarfile.GNU_FORMAT))
    header = content[2048:2560]
    header[124:136], header[156:157], header[148:156] = size, kind, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[2048:2560] = header
    found = index(bytes(content))
    assert [member.name for member in found.members] == ["0.txt", "1.txt"]
    assert found.fault is not None
    assert found.fault[0] == 2048


def test_a_tar_without_its_end_may_have_lost_files() -> None:
    content = tar_bytes([("0.txt", b"text")])[:1024]
    found = index(content)
    assert [m.name for m in found.members] == ["0.txt"]
    assert found.fault == (1024, "it lacks the end-of-archive marker at byte 1024 of 1024; 1 files before it")


def test_shards_of_the_webdataset_writer_have_the_same_keys_and_bytes(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "w-%03d.tar"), maxcount=3, verbose=0) as writer:
        for number in range(7):
            writer.write({"__key__": f"a/{number}", "mp4": bytes([number]) * 700, "json": {"caption": f"c {number}"}})
    pattern = f"{tmp_path}/w-{{000..002}}.tar"
    judge = webdataset.WebDataset(pattern, shardshuffle=False)
    expected = [(s["__key__"], s["mp4"], s["json"]) for s in judge]
    found = []
    for file in find_shards(pattern):
        for sample in samples_of(index_of(file)):
            parts = [
                read_clip(part_address(file, m.start, m.size)) for m in map(sample.members.get, ("mp4", "json")) if m
            ]
            found.append((sample.key, *parts))
    assert found == expected
    assert len(found) == 7


def test_an_index_is_read_once_and_anew_for_another_tar(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.tar"
    file.write_bytes(tar_bytes([("a.txt", b"one"), ("b.mp4", b"2" * 9000)]))
    first = index_of(str(file))
    with monkeypatch.context() as patched:
        patched.setattr(tar_index, "read_headers", lambda *_: pytest.fail("read again"))
        assert index_of(str(file)) == first
    file.write_bytes(tar_bytes([("a.txt", b"other!")]))
    assert [m.text for m in index_of(str(file)).members] == ["other!"]
    for kept in own_cache.rglob("*.json"):
        kept.write_text('{"members": [[')  # as after a power cut
    assert [m.text for m in index_of(str(file)).members] == ["other!"]


def test_the_mark_of_a_member_changes_with_its_bytes() -> None:
    base = bytes(9000)
    marks = [index(tar_bytes([("a.mp4", c)])).members[0].mark for c in (base, b"1" + base[1:], base[1:] + b"1", base)]
    assert len(set(marks)) == 3
    assert marks[0] == marks[3]


def test_a_storage_that_gives_no_parts_is_refused_and_works_through_a_copy() -> None:
    class Whole(MemoryFileSystem):
        """As a server that knows no ranges."""

        protocol = "whole"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.replace("whole://", "memory://")))

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: object) -> bytes:
            return super().cat_file(path)

    fsspec.register_implementation("whole", Whole, clobber=True)
    with fsspec.open("memory://shards/x.tar", "wb") as file:
        file.write(tar_bytes([("a.txt", b"one")]))
    with pytest.raises(DataError, match="does not support range requests; put `filecache::` before the address"):
        index_of("whole://shards/x.tar")
    address = "filecache::memory://shards/x.tar"
    member = index_of(address).members[0]
    assert read_clip(part_address(address, member.start, member.size)) == b"one"


def test_what_cannot_be_reached_is_said(tmp_path: Path) -> None:
    for address, why in {
        f"{tmp_path}/none.tar": "does not exist",
        str(tmp_path): "is not a file",
        "nosuch://b/x.tar": "Protocol not known: nosuch",
    }.items():
        with pytest.raises(DataError, match=why):
            index_of(address)
    with pytest.raises(DataError, match="a compressed tar cannot be read at random positions"):
        find_shards("a.tar.gz")
    with pytest.raises(DataError, match="no shard matches"):
        find_shards(f"{tmp_path}/*.tar")


def test_names_with_the_signs_of_a_pattern_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "data[1]"
    folder.mkdir()
    shard = folder / "clips{a,b}[2].tar"
    shard.write_bytes(tar_bytes([("a.txt", b"one")]))
    pattern = shard_pattern(str(folder))
    assert pattern is not None
    assert find_shards(pattern) == find_shards(str(shard)) == [str(shard)]


def test_a_network_that_fails_for_a_while_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OSError("reset"), TimeoutError(), b"abcd"])

    def read(*_: object, **__: object) -> bytes:
        answer = next(answers, OSError("for ever"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    fsspec.filesystem("memory").pipe_file("/bucket/retried.tar", bytes(8))
    monkeypatch.setattr(remote, "PAUSE", 0)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", read)
    assert read_clip("memory://bucket/retried.tar#0+4") == b"abcd"
    with pytest.raises(SampleError, match=r"for ever \(4 attempts\)"):
        read_clip("memory://bucket/retried.tar#4+4")


def test_patterns_and_names() -> None:
    assert list(braces("{a,b}-{08..10}.tar")) == [f"{x}-{n}.tar" for x in "ab" for n in ("08", "09", "10")]
    assert list(braces("x{2..0}")) == ["x2", "x1", "x0"]
    assert find_shards("a{1,1}.tar") == ["a1.tar"]
    assert short_names(["s3://b/one/x-0.tar", "s3://b/two/x-0.tar"]) == ["one/x-0", "two/x-0"]
    assert short_names(["/data/x-0.tar"]) == ["x-0"]


def test_the_index_is_plain_json(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_bytes([("a.txt", "é".encode()), ("b.txt", b"\xff")]))
    assert [m.text for m in index_of(str(tmp_path / "x.tar")).members] == ["é", None]
    (kept,) = own_cache.rglob("*.json")
    assert json.loads(kept.read_text())["fault"] is None


@pytest.mark.parametrize(
    "pattern",
    ["data-{0000000..9999999}.tar", "{0..999}{0..999}{0..9}.tar", f"x{{0..{'9' * 5000}}}.tar", "{9000000..0}.tar"],
)
def test_a_pattern_of_too_many_shards_is_refused_with_the_limit(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are spelled out, or at the first one above the limit."""
    if "}{" in pattern:
        monkeypatch.setattr(addresses, "MAX_SHARDS", 1000)  # so that the test is quick
    with pytest.raises(DataError, match=r"matches too many shards: expected at most 1,000(,000)?,"):
        find_shards(pattern)
