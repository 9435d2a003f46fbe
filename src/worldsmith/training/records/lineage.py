"""`lineage.json` of a run folder: the weights and the data that the run started from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.dcp.parts import whole_checkpoint
from worldsmith.checkpoint.run.folders import checkpoint_folders
from worldsmith.checkpoint.run.frozen_weights import LOAD_REPORT
from worldsmith.checkpoint.sources.first_weights import first_weights
from worldsmith.config.tree.plain import to_dict
from worldsmith.files.fingerprint import LINEAGE
from worldsmith.files.json_file import read_json_object
from worldsmith.monitor.lineage import Input, read_lineage, write_lineage
from worldsmith.monitor.redaction import redact_setting

if TYPE_CHECKING:
    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.training.run_config import RunConfig


def write_run_lineage(folder: Path, config: RunConfig, loaders: Mapping[str, PackingDataLoader]) -> None:
    """Writes the record of a run at its start. One that goes on keeps what is known of its first weights."""
    inputs = [
        *weights_of(folder, config),
        *(i for split, loader in loaders.items() for i in data_of(split, loader.dataset)),
    ]
    write_lineage(folder, action="train", settings=without_secrets(to_dict(config)), inputs=inputs)


def weights_of(folder: Path, config: RunConfig) -> list[Input | dict[str, Any]]:
    """The weights that the run's first start has read; none for random ones."""
    if (folder / LINEAGE).is_file() and checkpoint_folders(folder / "checkpoints"):
        return [entry for entry in read_lineage(folder).inputs if entry["role"] == "base"]
    if first_weights(config.checkpoint.load_path, config.checkpoint.init, config.model.config) is None:
        return []
    return [Input("base", whole_checkpoint(Path(str(read_json_object(folder / LOAD_REPORT)["folder"]))))]


def data_of(split: str, dataset: Any) -> Iterator[Input]:
    """The files of a data set, each member of a mixture by itself."""
    for member in getattr(dataset, "members", {"": dataset}).values():
        yield Input("dataset", member.name, {"split": split, "records": member.num_records, "samples": len(member)})


def without_secrets(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The settings as `config_origins.json` shows them."""
    plain: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            plain[name] = without_secrets(value, f"{path}{name}.")
        else:
            plain[name] = redact_setting(f"{path}{name}", value) if isinstance(value, str) else value
    return plain
