"""`WeightFormats`: how the weights of a model family are recognized and read, and the lookup of formats by family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from worldsmith.checkpoint.run.find_checkpoint import best_of
from worldsmith.config import Configurable
from worldsmith.config.errors import UserError
from worldsmith.config.tree.reader import from_dict
from worldsmith.files.json_file import section
from worldsmith.models.families import FamilyRegistry, find_released
from worldsmith.models.model_files import is_local
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from worldsmith.checkpoint.formats.stored_adapter import StoredAdapter
    from worldsmith.checkpoint.sources.weight_source import WeightSource

NATIVE_PREFIX = "model.net."
"""Prefix of every tensor name in a native export."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A weight that is stored as several tensors."""

    keys: Sequence[str]
    """Names of these tensors in the files."""
    shape: list[int]
    """Shape of the joined weight."""
    make: Callable[[Mapping[str, Tensor]], Tensor]
    """Joins the tensors, which are passed by their names in `keys`."""


@dataclass(frozen=True, slots=True)
class Naming:
    """A naming scheme, applied to the tensors of one folder."""

    family: str
    describe: str
    """Name of such a folder in messages."""
    keys: Mapping[str, str]
    """Internal parameter name → name in the file."""
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Reads the network settings from the folder's config.json; raises ValueError for invalid values."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Weights that such a folder does not store: internal name → name of the weight that they equal."""
    lacks: Callable[[str], bool] = lambda name: False
    """Whether such a folder never has the weight of this internal name."""
    joined: Mapping[str, Joined] = field(default_factory=dict)
    """Weights that such a folder stores as several tensors."""


@dataclass(frozen=True, slots=True)
class NetworkDifference:
    """Differences between the settings of a stored network and those of the network that loads its weights."""

    meanings: Sequence[str] = ()
    """Settings that change what the same weights compute, even if every shape fits."""
    sizes: Sequence[str] = ()
    """Settings that also change shapes."""
    choices: Sequence[str] = ()
    """Settings that a fine-tuning run may change; they are reported."""
    is_required: Callable[[str], bool] = lambda name: False
    """Whether it is an error to skip the stored weight of this internal name, which the network does not have."""


class WeightFormats:
    """Formats from which the weights of one family are read. The base class reads native exports only.

    A model config is the `Config` of the family's model. `settings` are the network settings that a folder states, by
    the field names of the network config. Optional abilities are declared by protocols, such as `ForeignCheckpoints`
    and `QuantizedFolders`: a family's class implements them by having their methods.
    """

    reads = ""
    """The formats that only this family reads, for messages."""
    advice = "Set model.config.network to the values of these weights."
    """Suggested fix for weights whose settings differ from the model's."""

    def __init__(self, family: str) -> None:
        self.family = family

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        """Recognizes the naming scheme of a folder; None if it belongs to another family.

        Args:
            keys: Names of the tensors in the files.
            config: Content of config.json.

        Raises:
            ValueError: If two names are the same tensor.
        """
        own = {key.removeprefix(NATIVE_PREFIX): key for key in keys if key.startswith(NATIVE_PREFIX)}
        return Naming(self.family, "native export", own, self.native_settings) if own else None

    def native_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the network settings in the config.json of a native export."""
        return self.settings_of(section(section(config, "model"), "config"))

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the network settings in a model config that is plain data.

        Raises:
            ValueError: If a setting is unknown or invalid.
        """
        return {}

    def difference(self, settings: Mapping[str, Any], config: Configurable.Config) -> NetworkDifference:
        """Compares the settings of stored weights with a model config."""
        return NetworkDifference()

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        """Returns the model of some weights, with the requested heads.

        Raises:
            UserError: If the settings of the weights are not sufficient.
        """
        raise UserError(f"{source.describe}: weights of the family '{self.family}' cannot be converted")

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        """Returns the model in a folder that another library has written; None if it is not of this family."""
        return None

    def place_components(self, config: Configurable.Config, folder: Path) -> None:
        """Sets the paths of a model config to the components in an exported folder."""

    def defaults_of_run(self, tree: Mapping[str, Any]) -> Any:
        """Returns the generation defaults in the config of a run (plain data); None if the family has none."""
        return None

    def read_defaults(self, data: Mapping[str, Any]) -> Any:
        """Returns the generation defaults from the `generation` section of an export; None if the family has none."""
        return None

    def published_defaults(self, config: Configurable.Config, folder: Path) -> Any:
        """Returns the generation defaults for a folder of another library: as stated there, else the released ones."""
        return self.read_defaults({})

    def read_adapter(self, folder: Path) -> StoredAdapter:
        """Reads the adapters of a folder in PEFT's format, by internal parameter name."""
        raise UserError(f"adapters for models of the family '{self.family}' are not supported")

    def load_adapter(self, network: nn.Module, folder: Path) -> list[str]:
        """Adds the adapters of a folder in PEFT's format to a network; returns the paths of the adapted layers."""
        raise UserError(f"adapters for models of the family '{self.family}' are not supported")


@runtime_checkable
class ForeignCheckpoints(Protocol):
    """Formats of a family that reads and writes checkpoints of another training system, which are not safetensors."""

    def find_source(self, root: Path) -> Callable[[], WeightSource] | None:
        """Returns a function that opens the weights at `root`; None if they are not in such a format.

        The function raises UserError if the files are damaged.
        """

    def write_foreign(
        self,
        format: str,
        folder: Path,
        spec: ModelSpec,
        source: WeightSource,
        dtype_of: Callable[[str], torch.dtype],
        vae: str | None = None,
    ) -> None:
        """Writes weights in the format of `convert --to FORMAT`.

        Args:
            format: Name of the format.
            folder: Folder to fill.
            spec: Model.
            source: Weights of the model.
            dtype_of: Returns the dtype in which the weight of an internal parameter name is stored.
            vae: Path of the VAE to include; None: none.

        Raises:
            ValueError: If the format cannot store the weights.
        """


@runtime_checkable
class QuantizedFolders(Protocol):
    """Formats of a family with exported folders of quantized weights, which are for inference only."""

    def is_quantized(self, folder: Path) -> bool:
        """Returns whether the weights in an exported folder are quantized."""

    def load_quantized(self, folder: Path, device: str | torch.device) -> Any:
        """Loads the model of a folder for which `is_quantized` returns True."""


@runtime_checkable
class SeveralNetworks(Protocol):
    """Formats of a family whose released folders contain several networks, one of which is the model."""

    def weights_folder(self, config: Configurable.Config, folder: Path) -> Path:
        """Returns the folder with the weights of the model, in an exported or released folder."""


@runtime_checkable
class EarlierRuns(Protocol):
    """Formats of a family that reads model configs of earlier versions, whose classes do not exist any more."""

    def network_of_run(self, model: Mapping[str, Any]) -> ModelSpec:
        """Returns a model with the network of a run's `model` section; other settings may differ."""


FORMATS: FamilyRegistry[WeightFormats] = FamilyRegistry(
    lambda family: family.load(family.formats)(family.name) if family.formats is not None else None
)
"""The formats of all families that have their own (`Family.formats`)."""


def weight_formats(family: str) -> WeightFormats:
    """Returns the formats of a model family; those of the base class if it has none of its own."""
    return FORMATS.find(family) or WeightFormats(family)


def find_naming(keys: Iterable[str], config: Mapping[str, Any], *, wanted: str = "") -> Naming | None:
    """Recognizes the naming scheme of a folder's tensors; None if no family has such tensors.

    Args:
        keys: Names of the tensors in the files.
        config: Content of config.json. That of a native export states the family.
        wanted: Preferred family if several families can read the folder.
    """
    keys = list(keys)
    model = config.get("model")
    stated = str(model.get("name", "")) if isinstance(model, dict) else ""
    known = [weight_formats(stated)] if stated else FORMATS.all()
    known.sort(key=lambda formats: formats.family != wanted)
    return next((naming for formats in known if (naming := formats.find_naming(keys, config)) is not None), None)


def find_source(root: Path) -> Callable[[], WeightSource] | None:
    """Returns a function that opens weights of another training system (`ForeignCheckpoints`); else None."""
    found = (formats.find_source(root) for formats in FORMATS.all() if isinstance(formats, ForeignCheckpoints))
    return next((opens for opens in found if opens is not None), None)


def run_network(model: Mapping[str, Any]) -> ModelSpec:
    """Converts the `model` section of a run's stored config, a dict, to a ModelSpec."""
    formats = weight_formats(model["name"])
    return formats.network_of_run(model) if isinstance(formats, EarlierRuns) else from_dict(dict(model), ModelSpec)


def describe_readable() -> str:
    """Returns the supported formats of other programs, for messages."""
    return "; ".join(formats.reads for formats in FORMATS.all() if formats.reads)


def full_name(name: str) -> str:
    """Resolves the short name of a released model to its Hub name, and `RUN/checkpoints/best` to a folder.

    Any other name is returned unchanged.
    """
    name = best_of(name)
    if is_local(name):
        return name
    return find_released(name) or name
