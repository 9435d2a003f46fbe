"""LLaVA-OneVision and similar datasets, read by the `datasets` library: from the Hub, streamed, or from local files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from worldsmith.config.declare.ranges import NotNegative
from worldsmith.data.conversations.conversation import Part, Turn, check_turns
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset, record_name, with_system
from worldsmith.data.conversations.datasets.llava import tagged_turns
from worldsmith.data.conversations.datasets.saved import local_copy
from worldsmith.data.stream.errors import DataError, SampleError, prefixing
from worldsmith.files.errors import require_libraries
from worldsmith.files.remote import is_remote


class LlavaOneVision(ChatDataset):
    """Dataset of records `{"id", "image", "conversations": [{"from", "value"}]}` with at most one image each.

    A streamed dataset is read sequentially: it cannot be shuffled, and a resumed run first reads all earlier records
    again. Without streaming, the complete dataset is downloaded before the run.
    """

    class Config(ChatDataset.Config):
        path: str = "lmms-lab/LLaVA-OneVision-Data"
        """Hub repository, or a folder of Parquet or Arrow files, on this machine or in a store (s3://bucket/folder)."""
        subset: str = "ai2d(gpt4v)"
        """Name of the subset (configuration) of the dataset; "" = its only one."""
        split: str = "train"
        """Split of the subset."""
        revision: str = ""
        """Commit or tag of the repository; "" = the newest."""
        streaming: bool = False
        """Stream from the hub during training; requires shuffle = false."""
        limit: NotNegative = 0
        """Use only the first N records; 0: all."""

    def __init__(self, config: Config) -> None:
        """Loads the dataset; raises DataError if that fails or the package `datasets` is not installed."""
        self.config = config
        self.name = f"{config.path} {config.subset}".strip()
        self.rejections = []
        self.records, self.num_records = load_records(config)

    def __len__(self) -> int:
        return self.num_records

    def place(self, index: int) -> tuple[str, str, int | None]:
        return f"{self.name}[{index}]", self.name, None

    def turns(self, index: int) -> tuple[Turn, ...]:
        record = self.records[index]
        image = record.get("image")
        images = [] if image is None else [Part("image", source=image_source(image))]
        with prefixing(record_name(record) or str(index)):
            turns = tagged_turns(record.get("conversations"), images, [])
            return check_turns(with_system(turns, self.config.system_prompt))

    def listing(self) -> Iterable[tuple[str, Any]]:
        """Yields (key, [path, subset, split, revision]) of each record; records are not read before the run."""
        source = [self.config.path, self.config.subset, self.config.split, self.config.revision]
        return ((self.place(index)[0], source) for index in range(self.num_records))


class Streamed:
    """Access by index to the records (dicts) of a dataset that is streamed sequentially.

    An index that is not above the index of the previous access restarts the stream. An index after the end raises
    SampleError (missing_record).
    """

    def __init__(self, stream: Iterable[dict[str, Any]]) -> None:
        self.stream = stream
        self._following: Iterator[dict[str, Any]] | None = None
        self._next = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._following is None or index < self._next:
            self._following, self._next = iter(self.stream), 0
        for record in self._following:
            self._next += 1
            if self._next > index:
                return record
        raise SampleError("missing_record", f"the stream ends after {self._next} records")


def load_records(config: LlavaOneVision.Config) -> tuple[Any, int]:
    """Returns (records, their number); `records[index]` is a dict. Raises DataError if the dataset cannot be loaded."""
    require_libraries(config.path, "datasets", "datasets", error=DataError)
    if config.streaming and is_remote(config.path):
        raise DataError(f"{config.path} is downloaded as a whole and not streamed. Set dataset.streaming to false")
    import datasets

    try:
        found = datasets.load_dataset(
            str(local_copy(config.path)),
            config.subset or None,
            split=config.split,
            revision=config.revision or None,
            streaming=config.streaming,
        )
        features = found.features or {}
        if isinstance(features.get("image"), datasets.Image):
            found = found.cast_column("image", datasets.Image(decode=False))
        if config.streaming:
            split = (found.info.splits or {}).get(config.split)
            count = split.num_examples if split else 0
        else:
            count = len(found)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{config.path} ({config.subset}, {config.split}) cannot be loaded: {error}") from error
    if not (count or config.limit):
        raise DataError(f"{config.path} does not state its number of records; set dataloader_train.dataset.limit")
    count = min(count or config.limit, config.limit or count)
    return Streamed(found) if config.streaming else found, count


def image_source(image: Any) -> str | bytes:
    """Returns the bytes, else the path, of an undecoded value of an image column; SampleError if it has neither."""
    source = (image.get("bytes") or image.get("path")) if isinstance(image, dict) else image
    if not isinstance(source, (str, bytes)):
        raise SampleError("bad_record", f"'image' must contain bytes or a path, found {type(image).__name__}")
    return source
