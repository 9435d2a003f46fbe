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
"""Value of `--vision-tower` that selects the vision tower of the model's initial weights instead of a folder."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export that all formats share."""

    dtype: DType = "bfloat16"
    merge: bool = True
    """Whether the adapters of a LoRA run are merged into the weights."""
    force: bool = False
    """Whether an older export is replaced."""
    tower: str | None = None
    """Path of weights whose vision tower is stored with the export; "own": the initial weights. None: no tower."""
    caption: str = ""
    """Caption from the training data, stored as an example of prompts; empty: not known."""


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """An export format of a model family: how an export is written, and what it contains."""

    folder: str
    """Default name of the exported folder, which is created in the run folder."""
    index: str
    """Name of a file that every export of this format has, such as config.json."""
    what: str
    """Description of the written files, for messages."""
    write: Callable[[StoredModel, Path, ExportOptions], bool]
    """Writes the export of a model to a folder; returns False if the same export exists already. Raises ValueError for
    a model that the format does not support."""
    tensors: Callable[[StoredModel, ExportOptions], Mapping[str, Tensor]]
    """Returns name in the files -> tensor for all tensors of the export; the callers use shapes and dtypes. Raises
    ValueError for a weight that has no name in this format."""
    check: Callable[[StoredModel], None] = lambda model: None
    """Raises ValueError for a model that the format does not support, without reading its weights."""
    of_library: bool = False
    """Whether the tensor names are those of the library class that loads the export (`library_network`, or PEFT)."""
    keeps_adapters: bool = False
    """Whether the export can contain LoRA adapters that are not merged into the weights."""
    keeps_tower: bool = False
    """Whether the export can contain a vision tower that was not part of the trained network."""
    has_schedule: bool = False
    """Whether the export contains settings of a noise schedule."""
    has_weights: bool = True
    """Whether the export contains full weights; False: only adapters."""
    has_caption: bool = False
    """Whether the export contains a caption from the training data."""


class FamilyFormats(WeightFormats):
    """Formats from which the weights of a model family are read and to which they are exported or converted.

    The base class serves families without formats of their own. Abilities that only some families have are declared by
    the protocols of this module and of `weight_formats`.
    """

    tower = ""
    """Prefix of the vision tower's names in an export, for a family whose trained network has no tower; empty: none."""
    native_type = ""
    """`model_type` in the config.json of a native export; empty: the family's name."""

    def library_network(self, config: Configurable.Config) -> nn.Module | None:
        """Builds the network as the diffusers or transformers class that loads exports, on the meta device.

        Args:
            config: Model config.

        Returns:
            The network; None if no library loads exports of this family.
        """
        return None

    def exports(self) -> dict[str, ExportFormat]:
        """Returns the export formats of this family: format name -> format; empty: only the native format."""
        return {}

    def stored_dtype(self, dtype: DType, config: Configurable.Config | None = None) -> Callable[[str], torch.dtype]:
        """Returns a function that maps an internal parameter name to the dtype in which an export stores the weight.

        Args:
            dtype: Requested dtype of the export; some families keep certain weights in float32.
            config: Model config; None if it is not known.
        """
        import torch

        target: torch.dtype = getattr(torch, dtype)
        return lambda name: target

    def pack_components(self, config: Configurable.Config, folder: Path, tree: Mapping[str, Any] | None = None) -> None:
        """Copies components other than the weights, such as the tokenizer, into an exported folder.

        Args:
            config: Model config.
            folder: Exported folder.
            tree: Config of the run as plain data, from which some families also store settings, such as limits of image
                sizes; None if the model does not come from a run.
        """

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Returns model name and config as plain data, in the form that `worldsmith.json` of an export stores."""
        return to_dict(spec)

    def left_out(self, format: str, config: Configurable.Config) -> list[str]:
        """Returns one sentence for each component, such as the VAE, that an export does not contain, for messages.

        Args:
            format: Name of the export format.
            config: Model config.
        """
        return []

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        """Returns the content of README.md, the model card, of an export.

        Args:
            name: Name of the exported folder.
            about: Content of its `worldsmith.json`.
        """
        return (
            f"# {name}\n\nThe weights of a {self.family} model under their internal parameter names "
            f"(`{NATIVE_PREFIX}…`), in {about['dtype']}, exported by Worldsmith {about['worldsmith']}. "
            "To train from it: "
            "`checkpoint.load_path` = this folder.\n"
        )

    def foreign_keys(self, format: str) -> tuple[str, Callable[[str], str]]:
        """Returns how `convert --to FORMAT` names files and tensors.

        Args:
            format: Name of the format, the value of `--to`.

        Returns:
            (base name of the weight files, function that maps an internal parameter name to the name in the files).

        Raises:
            UserError: If weights of the family cannot be converted to this format.
        """
        raise self.not_converted(format)

    def foreign_config(self, format: str, spec: ModelSpec) -> dict[str, Any]:
        """Returns the content of config.json that `convert --to FORMAT` writes for a model.

        Args:
            format: Name of the format, the value of `--to`.
            spec: Name and config of the model.

        Raises:
            UserError: If models of the family cannot be converted to this format.
        """
        raise self.not_converted(format)

    def language_weights(self, source: WeightSource, config: Mapping[str, Any]) -> dict[str, str]:
        """Returns tensor name in a Qwen3-VL folder → internal parameter name, for the weights of the language model.

        Args:
            source: Weights of this family.
            config: Content of the folder's config.json.

        Raises:
            UserError: If models of the family have no language model of Qwen3-VL, or the one in `source` has other
                settings than that of the folder.
        """
        raise self.not_converted("vlm")

    def not_converted(self, format: str) -> UserError:
        """Returns, but does not raise, a UserError: weights of the family cannot be converted to `format`."""
        return UserError(
            f"weights of the family '{self.family}' cannot be converted to {format}; use --to dcp or native"
        )


@runtime_checkable
class AddsHeads(Protocol):
    """Formats of a family to whose weights `worldsmith convert --heads` can add output heads, such as "action"."""

    def head_names(self, source: WeightSource, heads: Sequence[str]) -> list[str]:
        """Returns the parameter name prefixes of the output heads that `source` lacks, so that they are initialized.

        Args:
            source: Weights on disk.
            heads: Names of the requested output heads, such as "action" or "sound".
        """


@runtime_checkable
class NamesLibraryShapes(Protocol):
    """Formats of a family whose model files have other tensor names or shapes than the state dict of the network."""

    def library_shapes(self, config: Configurable.Config) -> Mapping[str, Sequence[int]]:
        """Returns tensor name -> shape for every tensor that transformers expects in the weight files of a model."""


@runtime_checkable
class LoadsPipelineAdapters(Protocol):
    """Formats of a family whose diffusers pipeline loads adapters (`load_lora_weights`)."""

    adapter_layout: AdapterLayout
    """Mapping between internal names of LoRA tensors and their names in files for `load_lora_weights`."""

    def adapts(self, layers: Sequence[str]) -> bool:
        """Returns whether the family's diffusers pipeline has all `layers` (module paths as in diffusers)."""


@runtime_checkable
class AssemblesModels(Protocol):
    """Formats of a family whose models `worldsmith convert --to WORD` builds from those of another family."""

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
            path: Path or Hub name of the weights of another family.
            out: Target folder.
            base: Path or Hub name of a model of this family, for the components that the weights in `path` lack; None:
                the released model whose size is that of the weights in `path`.
            tower: Path of weights with a vision tower; None: the tower of `path`, else that of `base`.
            dtype: Dtype of the written weights; "stored": each tensor keeps its dtype.
            force: Whether an existing converted model in `out` is replaced.

        Returns:
            Output lines that state where each component comes from.
        """


def formats_of(family: str) -> FamilyFormats:
    """Returns the object that reads and exports weights of a family; `FamilyFormats` if the family defines none."""
    found = FORMATS.find(family)
    return found if isinstance(found, FamilyFormats) else FamilyFormats(family)


def assembling(word: str) -> AssemblesModels:
    """Returns the formats object of the family whose models `worldsmith convert --to WORD` builds, such as "vlm".

    Raises LookupError if no family has the name `word`.
    """
    for formats in FORMATS.all():
        if isinstance(formats, AssemblesModels) and formats.assembled_as == word:
            return formats
    raise LookupError(f"convert --to {word}: not supported by any model family")
