"""`FamilyFormats`: formats from which the weights of a model family are read, and to which they are exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from worldsmith.checkpoint.formats.weight_formats import FORMATS, NATIVE_PREFIX, WeightFormats
from worldsmith.config import Configurable
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from worldsmith.checkpoint.formats.stored_adapter import AdapterLayout
    from worldsmith.checkpoint.formats.stored_model import StoredModel
    from worldsmith.checkpoint.sources.weight_source import WeightSource

DType = Literal["float32", "bfloat16"]
OWN = "own"
"""Value that selects the vision tower of the initial weights instead of a folder."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export that all formats share."""

    dtype: DType = "bfloat16"
    merge: bool = True
    """Merge the adapters of a LoRA run into the weights."""
    force: bool = False
    """Replace an older export."""
    tower: str | None = None
    """Path of the vision tower that is stored with the weights; OWN: that of the initial weights. None: no tower."""


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """One export format of a model family."""

    folder: str
    """Name of the exported folder in the run folder."""
    index: str
    """A file that every such folder has."""
    what: str
    """Description of the written files, for messages."""
    write: Callable[[StoredModel, Path, ExportOptions], bool]
    """Writes the folder; returns False if the same export exists. Raises ValueError for a model that the format does
    not support."""
    tensors: Callable[[StoredModel, ExportOptions], Mapping[str, Tensor]]
    """Shapes and dtypes of the tensors in its weight files, by name. Raises ValueError for a weight without a name in
    this format."""
    check: Callable[[StoredModel], None] = lambda model: None
    """Raises ValueError for a model that the format does not support, without reading its weights."""
    of_library: bool = False
    """Whether the family's library loads the weights by the names of its own class (`library_network`)."""
    keeps_adapters: bool = False
    """Whether adapters can be stored next to the weights, unmerged."""
    keeps_tower: bool = False
    """Whether the vision tower of a family that trains without it can be stored with the weights."""
    has_schedule: bool = False
    """Whether it contains settings of a noise schedule."""
    has_weights: bool = True
    """Whether it contains full weights, not only adapters."""


class FamilyFormats(WeightFormats):
    """Formats of one model family; the base class is for families without formats of their own.

    Optional abilities of a family are declared by the protocols of this module and of `weight_formats`.
    """

    tower = ""
    """Name prefix of a vision tower that the family does not train with; empty: no tower."""
    native_type = ""
    """`model_type` in the config.json of a native export; empty: the family's name."""

    def library_network(self, config: Configurable.Config) -> nn.Module | None:
        """Returns the network as a class of the library that loads exports, on the meta device; None without one."""
        return None

    def exports(self) -> dict[str, ExportFormat]:
        """Returns the family's own export formats by name; empty: only the native one (see `exports_of`)."""
        return {}

    def stored_dtype(self, dtype: DType, config: Configurable.Config | None = None) -> Callable[[str], torch.dtype]:
        """Returns a function from a weight's name in an export to its dtype.

        Args:
            dtype: Dtype of the export.
            config: Model config; None: not known.
        """
        import torch

        target: torch.dtype = getattr(torch, dtype)
        return lambda name: target

    def pack_components(self, config: Configurable.Config, folder: Path, tree: Mapping[str, Any] | None = None) -> None:
        """Copies the components that the model needs in addition to its weights into an exported folder.

        Args:
            config: Model config.
            folder: Exported folder.
            tree: Config of the run as plain data, with settings that the model may need; None without a run.
        """

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Returns the model config as plain data, as a native export stores it."""
        return to_dict(spec)

    def left_out(self, format: str, config: Configurable.Config) -> list[str]:
        """Returns the components that an export in `format` omits, for messages."""
        return []

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        """Returns the README.md of an exported folder.

        Args:
            name: Name of the folder.
            about: Description of the export (`worldsmith.json`).
        """
        return (
            f"# {name}\n\nThe weights of a {self.family} model under their internal parameter names "
            f"(`{NATIVE_PREFIX}…`), in {about['dtype']}, exported by Worldsmith {about['worldsmith']}. "
            "To train from it: "
            "`checkpoint.load_path` = this folder.\n"
        )

    def foreign_keys(self, format: str) -> tuple[str, Callable[[str], str]]:
        """Returns the base name of the weight files and the function internal name → name there, for `convert`.

        Args:
            format: FORMAT of `convert --to FORMAT`.

        Raises:
            UserError: If the family is not converted to this format.
        """
        raise self.not_converted(format)

    def foreign_config(self, format: str, spec: ModelSpec) -> dict[str, Any]:
        """Returns the content of config.json for `convert --to FORMAT`."""
        raise self.not_converted(format)

    def not_converted(self, format: str) -> UserError:
        """Returns the error for a conversion that the family does not support."""
        return UserError(
            f"weights of the family '{self.family}' cannot be converted to {format}; use --to dcp or native"
        )


@runtime_checkable
class AddsHeads(Protocol):
    """Formats of a family whose networks can get heads that the weights lack (`convert --heads`)."""

    def head_names(self, source: WeightSource, heads: Sequence[str]) -> list[str]:
        """Returns the weight name prefixes of the requested heads that the source lacks."""


@runtime_checkable
class NamesLibraryShapes(Protocol):
    """Formats of a family whose library reads tensors other than those of its network's state dict."""

    def library_shapes(self, config: Configurable.Config) -> Mapping[str, Sequence[int]]:
        """Returns the shape of every tensor that the library reads from a weights folder, by name."""


@runtime_checkable
class LoadsPipelineAdapters(Protocol):
    """Formats of a family whose pipeline loads adapters (`load_lora_weights`)."""

    adapter_layout: AdapterLayout
    """Names of the adapters in files for the pipeline."""

    def adapts(self, layers: Sequence[str]) -> bool:
        """Returns whether adapters of these layers fit a pipeline of this family."""


@runtime_checkable
class AssemblesModels(Protocol):
    """Formats of a family whose models can be built from those of another family (`convert --to WORD`)."""

    assembled_as: str
    """Value of `convert --to`."""

    def assemble(
        self,
        path: str,
        out: str | Path,
        *,
        base: str | None,
        tower: str | None,
        dtype: DType | Literal["stored"],
        force: bool,
    ) -> list[str]:
        """Writes a model of this family from the weights of another family.

        Args:
            path: Weights of the other family (as accepted by `open_weights`).
            out: Target folder.
            base: Model with the components that these weights lack; None: the released model of the same size.
            tower: Weights of the vision tower; None: the tower of `path`, else that of `base`.
            dtype: Dtype of the weights; "stored": that of each stored tensor.
            force: Replace an older conversion.

        Returns:
            Lines on the origin of the model's parts.
        """


@runtime_checkable
class HasLanguageModel(Protocol):
    """Formats of a family whose networks contain the language model of a Qwen3-VL (`convert --to vlm`)."""

    def language_weights(self, source: WeightSource, config: Mapping[str, Any]) -> dict[str, str]:
        """Returns names in a Qwen3-VL folder with this config.json → internal names of the same weights.

        Raises:
            UserError: If the language model of the source is not that of the folder.
        """


def formats_of(family: str) -> FamilyFormats:
    """Returns the formats of a model family; those of the base class if it has none of its own."""
    found = FORMATS.find(family)
    return found if isinstance(found, FamilyFormats) else FamilyFormats(family)


def assembling(word: str) -> AssemblesModels:
    """Returns the formats of the family that `convert --to WORD` builds; raises LookupError without one."""
    for formats in FORMATS.all():
        if isinstance(formats, AssemblesModels) and formats.assembled_as == word:
            return formats
    raise LookupError(f"convert --to {word}: not supported by any model family")


def language_weights(family: str, source: WeightSource, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns `HasLanguageModel.language_weights` of a family; raises UserError if it has no language model."""
    formats = formats_of(family)
    if not isinstance(formats, HasLanguageModel):
        raise formats.not_converted("vlm")
    return formats.language_weights(source, config)
