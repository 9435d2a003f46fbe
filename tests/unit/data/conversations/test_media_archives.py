"""Media in archives: read without being unpacked by hand, once, by content, and never outside the folder."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.media_archives import unpacked
from worldsmith.data.stream.errors import DataError

NAMES = ("a.png", "deep/b.png", "c.mp4")


def pack(archive: Path, names: tuple[str, ...] = NAMES, top: str = "") -> Path:
    members = {f"{top}{name}": name.encode() for name in names}
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as file:
            for name, data in members.items():
                file.writestr(name, data)
        return archive
    with tarfile.open(archive, "w:gz" if archive.name.endswith("gz") else "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return archive


def build(folder: Path, media_root: str, **settings: Any) -> LlavaDataset:
    turns = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "this"}]
    kinds = ("image", "image", "video")
    records = [{"id": name, kind: name, "conversations": turns} for kind, name in zip(kinds, NAMES)]
    (folder / "annotations.json").write_text(json.dumps(records))
    return LlavaDataset.Config(path=str(folder), media_root=media_root, **settings).build()


def contents(dataset: LlavaDataset) -> list[bytes]:
    return [Path(str(dataset.turns(index)[0].parts[0].source)).read_bytes() for index in range(len(dataset))]


@pytest.mark.parametrize("name", ["videos.tar.gz", "v.tgz", "v.tar", "v.zip"])
@pytest.mark.parametrize("top", ["", "videos/"])
def test_an_archive_is_a_media_root(tmp_path: Path, name: str, top: str) -> None:
    pack(tmp_path / name, top=top)
    dataset = build(tmp_path, str(tmp_path / name))
    assert len(dataset) == 3
    assert not list(tmp_path.glob(".unpacked_*"))  # counting records unpacks nothing
    assert contents(dataset) == [name.encode() for name in NAMES]
    assert [Path(file).read_bytes() for entry in dataset.entries for file in entry.files] == contents(dataset)


def test_the_folder_of_a_data_set_may_hold_its_media_packed(tmp_path: Path) -> None:
    pack(tmp_path / "images.tar.gz", NAMES[:2])
    pack(tmp_path / "videos.tar.gz", NAMES[2:])
    assert contents(build(tmp_path, "")) == [name.encode() for name in NAMES]


def test_unpacked_files_beside_an_archive_are_taken(tmp_path: Path) -> None:
    pack(tmp_path / "videos.tar.gz", ("other.mp4",))
    (tmp_path / "deep").mkdir()
    for name in NAMES:
        (tmp_path / name).write_bytes(name.encode())
    assert contents(build(tmp_path, "")) == [name.encode() for name in NAMES]
    assert not list(tmp_path.glob(".unpacked_*"))


def test_the_same_media_packed_or_not_are_the_same_data(tmp_path: Path) -> None:
    pack(tmp_path / "v.tar.gz")
    packed = build(tmp_path, str(tmp_path / "v.tar.gz"))
    plain = build(tmp_path, str(unpacked(tmp_path / "v.tar.gz")))
    assert packed.fingerprint == plain.fingerprint
    first = unpacked(tmp_path / "v.tar.gz")
    assert unpacked(tmp_path / "v.tar.gz") == first
    pack(tmp_path / "v.tar.gz", (*NAMES, "more.png"))
    assert unpacked(tmp_path / "v.tar.gz") != first  # another content is another folder


def test_several_processes_unpack_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pack(tmp_path / "v.tar.gz", tuple(f"{number}.png" for number in range(300)))
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(unpacked, [tmp_path / "v.tar.gz"] * 4))
    assert len(folders) == 1
    assert len(list(folders.pop().iterdir())) == 300
    assert caplog.text.count("unpacked 300 files") == 1


@pytest.mark.parametrize("name", ["v.tar.gz", "v.zip"])
@pytest.mark.parametrize("member", ["../out.png", "/tmp/worldsmith_out.png"])
def test_nothing_is_written_outside(tmp_path: Path, name: str, member: str) -> None:
    pack(tmp_path / name, ("a.png", member))
    if name == "v.tar.gz" and member.startswith("/"):
        folder = unpacked(tmp_path / name)  # the filter of the library takes the slash away
        assert (folder / member.lstrip("/")).is_file()
    else:
        with pytest.raises(DataError, match="outside"):
            unpacked(tmp_path / name)
        assert not list(tmp_path.glob(".unpacked_*"))
    assert not (tmp_path / "out.png").exists()
    assert not Path("/tmp/worldsmith_out.png").exists()


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "v.tar", "w") as file:
        info = tarfile.TarInfo("link.png")
        info.type, info.linkname = tarfile.SYMTYPE, "../../secret"
        file.addfile(info)
    with pytest.raises(DataError, match="outside"):
        unpacked(tmp_path / "v.tar")


def test_an_unreadable_or_missing_archive_is_said(tmp_path: Path) -> None:
    for name in ("v.zip", "v.tar", "v.tar.gz"):
        (tmp_path / name).write_bytes(b"no archive" * 100)
        with pytest.raises(DataError, match=rf"{name} is damaged and cannot be unpacked"):
            unpacked(tmp_path / name)
    with pytest.raises(DataError, match=r"gone\.tar cannot be read"):
        build(tmp_path, str(tmp_path / "gone.tar")).turns(0)
    assert not list(tmp_path.glob(".unpacked_*"))
    assert not list(tmp_path.glob(".saving_*"))


def damage(archive: Path, member: str) -> None:
    """Makes one member unreadable: the bytes of a zip's member, the header of a tar's."""
    data = bytearray(archive.read_bytes())
    place = data.index(member.encode())
    data[place + len(member) if archive.suffix == ".zip" else place + 100] ^= 0xFF
    archive.write_bytes(data)


@pytest.mark.parametrize(("name", "kept"), [("v.zip", [NAMES[0], NAMES[2]]), ("v.tar", [NAMES[0]])])
def test_a_damaged_member_is_left_out_and_said_at_each_start(
    tmp_path: Path, name: str, kept: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A tar ends with a damaged header, since the next one cannot be found."""
    damage(pack(tmp_path / name), NAMES[1])
    for _ in range(2):
        caplog.clear()
        dataset = build(tmp_path, str(tmp_path / name))
        sources = [Path(str(dataset.turns(index)[0].parts[0].source)) for index in range(3)]
        assert [file.read_bytes() for file in sources if file.exists()] == [kept_name.encode() for kept_name in kept]
        (line,) = [line for line in caplog.messages if "is damaged:" in line]
        start = f"the archive {tmp_path / name} is damaged: 1 error, unpacked files: {len(kept)};"
        assert line.startswith(start), line
    (listing,) = tmp_path.glob(".unpacked_*/.damage.jsonl")
    assert str(listing) in line
    (entry,) = map(json.loads, listing.read_text().splitlines())
    assert entry["why"]
    assert NAMES[1] in entry["member"] or name == "v.tar"


@pytest.mark.parametrize("name", ["v.tar.gz", "v.tar"])
def test_a_cut_archive_gives_what_is_before_the_cut(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    archive = pack(tmp_path / name, tuple(f"{n}.png" for n in range(500)))
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2 // 512 * 512 + 514])
    folder = unpacked(archive)
    files = {file.name: file.read_bytes() for file in folder.glob("*.png")}
    assert 0 < len(files) < 500
    assert all(data == name.encode() for name, data in files.items()), "no file is cut"
    assert f"is damaged: 1 error, unpacked files: {len(files)};" in caplog.text


def test_one_archive_of_several_that_cannot_be_read_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack(tmp_path / "images.tar.gz", NAMES[:2])
    (tmp_path / "videos.tar.gz").write_bytes(b"no archive")
    dataset = build(tmp_path, "")
    found = [Path(str(dataset.turns(index)[0].parts[0].source)) for index in range(3)]
    assert [file.exists() for file in found] == [True, True, False]
    assert "videos.tar.gz is damaged and cannot be unpacked" in caplog.text
    (tmp_path / "images.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"videos\.tar\.gz is damaged and cannot be unpacked"):
        build(tmp_path, "").turns(0)


def test_a_folder_that_takes_no_files_sends_them_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "v.tar")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    folder = unpacked(tmp_path / "v.tar")
    assert folder.is_relative_to(tmp_path / "cache/worldsmith/unpacked")
    assert contents(build(tmp_path, str(tmp_path / "v.tar"))) == [name.encode() for name in NAMES]
    shutil.rmtree(folder)
