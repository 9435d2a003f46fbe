"""`WeightFormats`: how the weights of a model family are recognized and read, and the lookup of formats by family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from worldsmith.checkpoint.run.find_checkpoint import best_of
from worldsmith.config import Config, Configurable
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.plain import TAG
from worldsmith.config.tree.read_config import from_dict
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
    """A weight of the network that the files store as several tensors, such as separate Q, K and V projections."""

    keys: Sequence[str]
    """Names of the stored tensors in the files."""
    shape: list[int]
    """Shape of the joined weight."""
    make: Callable[[Mapping[str, Tensor]], Tensor]
    """Returns the joined weight from the stored tensors (name in `keys` -> tensor)."""


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of the tensors in one folder of weights, and the function that reads the folder's config.json."""

    family: str
    describe: str
    """Name of this kind of folder in messages, such as "native export"."""
    keys: Mapping[str, str]
    """Internal parameter name → name in the file."""
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Reads the network settings from the folder's config.json; raises ValueError for invalid values."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Weights that the folder does not store because they equal another weight: internal name → name of that weight."""
    lacks: Callable[[str], bool] = lambda name: False
    """Called with an internal parameter name; returns whether folders of this kind never contain the weight."""
    joined: Mapping[str, Joined] = field(default_factory=dict)
    """Internal parameter name → tensors that are joined to it, for weights that the folder stores as several
    tensors."""


@dataclass(frozen=True, slots=True)
class NetworkDifference:
    """Settings that differ between stored weights and the network that loads them, each described by a clause.

    An example of a clause is "rope_theta is 10000 in the weights and 50000 in the config".
    """

    meanings: Sequence[str] = ()
    """Clauses on settings that change the output of the network but no weight shape; each is an error."""
    sizes: Sequence[str] = ()
    """Clauses on settings that change the shapes of weights; each is an error."""
    choices: Sequence[str] = ()
    """Clauses on settings that fine-tuning may change; they are only reported."""
    is_required: Callable[[str], bool] = lambda name: False
    """Called with the internal name of a stored weight that the network lacks; returns whether skipping it is an
    error."""


class WeightFormats:
    """Formats from which the weights of one model family are read. The base class reads native exports only.

    A model config is the `Config` of the family's model. `settings` are the network settings that a folder states:
    field name of the network config -> value. Abilities that only some families have are declared by protocols, such as
    `ForeignCheckpoints` and `QuantizedFolders`, whose methods the family's class defines.
    """

    reads = ""
    """Description of the file formats that only this family reads, for messages."""
    advice = "Set model.config.network to the values of these weights."
    """Fix that a message suggests if settings of the weights differ from the model config."""

    def __init__(self, family: str) -> None:
        self.family = family

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        """Recognizes weights of this family by their names in the files; returns None for other weights.

        Args:
            keys: Names of the tensors in the files.
            config: Content of config.json in the folder; may be empty.

        Raises:
            ValueError: If two names belong to the same parameter.
        """
        own = {key.removeprefix(NATIVE_PREFIX): key for key in keys if key.startswith(NATIVE_PREFIX)}
        return Naming(self.family, "native export", own, self.native_settings) if own else None

    def native_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the network settings (field name -> value) from the content of a native export's config.json."""
        return self.settings_of(section(section(config, "model"), "config"))

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the network settings (field name -> value) in a model config that is plain data.

        Raises:
            ValueError: If a setting is unknown or invalid.
        """
        return {}

    def difference(self, settings: Mapping[str, Any], config: Configurable.Config) -> NetworkDifference:
        """Compares `settings`, the network settings that stored weights state, with the model config `config`."""
        return NetworkDifference()

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        """Returns name and config of a model that fits the weights in `source`.

        Args:
            source: Weights on disk.
            heads: Additional output heads of the network, such as "action" or "sound", in families that have them.

        Raises:
            UserError: If the source does not state enough settings.
        """
        raise UserError(f"{source.describe}: weights of the family '{self.family}' cannot be converted")

    def network_of_run(self, model: Mapping[str, Any]) -> ModelSpec:
        """Returns name and config of a model with the network of a stored run.

        A family can override this method to also read configs of earlier versions of Worldsmith.

        Args:
            model: Section `model` of the run's config, as plain data.
        """
        return from_dict(dict(model), ModelSpec)

    def weights_folder(self, config: Configurable.Config, folder: Path) -> Path:
        """Returns the folder with the weights of the trained network in the exported or released folder `folder`.

        Another folder than `folder` only if that contains several networks.
        """
        return folder

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        """Returns name and config of the model in a folder of diffusers or transformers; None if not of this family."""
        return None

    def set_component_folder(self, config: Configurable.Config, folder: Path) -> None:
        """Sets the paths of tokenizer, VAE and other components in the model config to those in an exported folder.

        Args:
            config: Model config, which is changed in place.
            folder: Exported folder with the components.
        """

    def defaults_of_run(self, tree: Mapping[str, Any]) -> Any:
        """Returns the default generation settings (a dataclass) from a run's config as plain data.

        None if the family has no such settings.
        """
        return None

    def read_defaults(self, data: Mapping[str, Any]) -> Any:
        """Returns the default generation settings (a dataclass) from the section `generation` of `worldsmith.json`.

        None if the family has no such settings.
        """
        return None

    def published_defaults(self, config: Configurable.Config, folder: Path) -> Any:
        """Returns the default generation settings (a dataclass) for a model folder of diffusers or transformers.

        Settings that the files of the folder do not state get the values of the released model. Returns None if the
        family has no generation settings.
        """
        return self.read_defaults({})

    def read_adapter(self, folder: Path) -> StoredAdapter:
        """Reads the LoRA adapters in a PEFT folder; raises UserError if the family does not support adapters."""
        raise UserError(f"adapters for models of the family '{self.family}' are not supported")

    def load_adapter(self, network: nn.Module, folder: Path) -> list[str]:
        """Loads the LoRA adapters of a PEFT folder into `network`, in place; returns the paths of the adapted layers.

        Raises UserError if the family does not support adapters.
        """
        raise UserError(f"adapters for models of the family '{self.family}' are not supported")


@runtime_checkable
class ForeignCheckpoints(Protocol):
    """Formats of a family that reads and writes checkpoints of another training system, which are not safetensors."""

    def find_source(self, root: Path) -> Callable[[], WeightSource] | None:
        """Returns a function that opens the weights in the folder `root`; None if the family cannot read them.

        The returned function raises UserError if the files are damaged.
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
        """Writes the weights of a model in a checkpoint format of another training system (`convert --to FORMAT`).

        Args:
            format: Name of the format, the value of `--to`.
            folder: Folder that the files are written to.
            spec: Name and config of the model.
            source: Weights of the model.
            dtype_of: Returns the dtype in which a weight is stored, from its internal parameter name.
            vae: Path of a VAE whose weights are included; None: no VAE.

        Raises:
            ValueError: If the format cannot store the weights.
        """


@runtime_checkable
class QuantizedFolders(Protocol):
    """Formats of a family with exported folders of quantized weights, which are for inference only."""

    def is_quantized(self, folder: Path) -> bool:
        """Returns whether the weights in an exported folder are quantized."""

    def load_quantized(self, folder: Path, device: str | torch.device) -> Any:
        """Loads the quantized model in `folder` onto `device` for inference; returns the model object of the family."""


FORMATS: FamilyRegistry[WeightFormats] = FamilyRegistry(
    lambda family: resolve_name(family.formats)(family.name) if family.formats is not None else None
)
"""Formats objects of the model families that define one (`Family.formats`)."""


def weight_formats(family: str) -> WeightFormats:
    """Returns the object that reads weights of a model family; `WeightFormats` if the family defines none."""
    return FORMATS.find(family) or WeightFormats(family)


def find_naming(keys: Iterable[str], config: Mapping[str, Any], *, wanted: str = "") -> Naming | None:
    """Recognizes the model family of weights by their names in the files; None if no family has such names.

    Args:
        keys: Names of the tensors in the files.
        config: Content of config.json in the folder; may be empty. In a native export, it names the model family.
        wanted: Model family that is tried first, because several families may have such names; "": no preference.
    """
    keys = list(keys)
    model = config.get("model")
    stated = str(model.get("name", "")) if isinstance(model, dict) else ""
    known = [weight_formats(stated)] if stated else FORMATS.all()
    known.sort(key=lambda formats: formats.family != wanted)
    return next((naming for formats in known if (naming := formats.find_naming(keys, config)) is not None), None)


def find_source(root: Path) -> Callable[[], WeightSource] | None:
    """Returns a function that opens the checkpoint `root` of another training system; None for any other folder."""
    found = (formats.find_source(root) for formats in FORMATS.all() if isinstance(formats, ForeignCheckpoints))
    return next((opens for opens in found if opens is not None), None)


def read_network(settings: Mapping[str, Any], network: type[Config]) -> dict[str, Any]:
    """Returns network settings in the types of the network config (field name -> value).

    Args:
        settings: Settings as plain data; the name of a class in them is ignored.
        network: Class of the network config.

    Raises:
        ValueError: If a setting is unknown or invalid.
    """
    given = {name: value for name, value in settings.items() if name != TAG}
    try:
        read = from_dict(given, network)
    except ConfigError as error:
        raise ValueError("; ".join(problem.render() for problem in error.problems)) from error
    return {name: getattr(read, name) for name in given}


def describe_readable() -> str:
    """Returns a description of the weight formats of other programs that can be read, for messages."""
    return "; ".join(formats.reads for formats in FORMATS.all() if formats.reads)


def full_name(name: str) -> str:
    """Resolves the short name of a released model to its Hub name; returns other names and paths unchanged.

    `RUN/checkpoints/best` is resolved to the path of the run's best checkpoint. Raises FileNotFoundError if no
    best checkpoint is recorded.
    """
    name = best_of(name)
    if is_local(name):
        return name
    return find_released(name) or name
