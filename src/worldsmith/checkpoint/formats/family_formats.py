"""`FamilyFormats`: what `checkpoint/` knows of a model family, and all that it asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.config import Configurable
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.reader import from_dict
from worldsmith.files.json_file import section
from worldsmith.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from worldsmith.checkpoint.formats.peft_adapter import AdapterLayout
    from worldsmith.checkpoint.formats.quantizer import Method, Quantizer, Scheme
    from worldsmith.checkpoint.formats.stored_adapter import StoredAdapter
    from worldsmith.checkpoint.formats.stored_model import StoredModel
    from worldsmith.checkpoint.sources.weight_source import WeightSource

DType = Literal["float32", "bfloat16"]
OWN = "own"
"""Instead of a folder: the vision tower that a model came with."""
NATIVE_PREFIX = "model.net."
"""What native exports put before every name."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A weight that a folder keeps in parts."""

    keys: Sequence[str]
    """Names of the parts in the files."""
    shape: list[int]
    """Of the whole."""
    make: Callable[[Mapping[str, Tensor]], Tensor]
    """Makes it of the parts, by those names."""


@dataclass(frozen=True, slots=True)
class Naming:
    """One naming scheme, applied to the tensors of one folder."""

    family: str
    describe: str
    """What a folder in it is called, for people."""
    keys: Mapping[str, str]
    """Native name → name in the file."""
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """What the config.json of such a folder says about the network; raises ValueError for nonsense."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Weights that such a folder does not hold and stands for: native name → that of the weight it equals."""
    lacks: Callable[[str], bool] = lambda name: False
    """Whether such a folder never has the weight of this native name."""
    joined: Mapping[str, Joined] = field(default_factory=dict)
    """Weights that such a folder keeps in parts."""


@dataclass(frozen=True, slots=True)
class NetworkDifference:
    """Where the settings of a stored network differ from those of the one that is to get its weights, in words."""

    meanings: Sequence[str] = ()
    """With other values the same weights compute something else, though every shape may fit."""
    sizes: Sequence[str] = ()
    """Differences that show in shapes, too."""
    choices: Sequence[str] = ()
    """What a fine-tuned run may choose, but should know."""


@dataclass(frozen=True, slots=True)
class Export:
    """One format in which a family's models are exported."""

    folder: str
    """The name of the exported folder in the run folder."""
    index: str
    """The file that every such folder has."""
    what: str
    """What is written, for people."""
    write: Callable[[StoredModel, Path, ExportOptions], bool]
    """Writes the folder; False when the same is there already. Raises ValueError for what it cannot hold."""
    tensors: Callable[[StoredModel, ExportOptions], Mapping[str, Tensor]]
    """What is in its weight files, by the names there. Raises ValueError for a weight that has no name there."""
    check: Callable[[StoredModel], None] = lambda model: None
    """Raises ValueError for a model that the format cannot hold, which is known without its weights."""
    of_library: bool = False
    """Whether the family's library reads the weights by the names of its own class (`library_shapes`)."""
    keeps_adapters: bool = False
    """Whether adapters may stay beside the weights."""
    keeps_tower: bool = False
    """Whether the vision tower of a family that trains without it may be kept with the weights."""
    has_schedule: bool = False
    """Whether it holds settings of a noise schedule."""
    has_weights: bool = True
    """Whether it holds the weights themselves, and not adapters alone."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    dtype: DType = "bfloat16"
    merge: bool = True
    """Merge the adapters of a LoRA run into the weights."""
    force: bool = False
    """Replace an older export."""
    tower: str | None = None
    """Where the vision tower is that is kept with the weights; OWN: what the run started from. None: none is kept."""


class FamilyFormats:
    """The formats of one family; as it stands, those of a family that has none of its own.

    A model config is the `Config` of the family's model. `settings` are what a folder says about its network, by the
    names of the network's fields.
    """

    reads = ""
    """The folders of weights that only this family reads, for people."""
    tower = ""
    """The beginning of the names of a vision tower, which the family trains without; empty: there is none."""
    assembled_as = ""
    """`convert --to` this word makes a model of this family out of another's (`assemble`); empty: nothing does."""
    advice = "Set model.config.network to the values of these weights."
    """What to do about weights whose settings are not those of the model."""
    heads: Sequence[str] = ()
    """Heads that `convert` can add to a network which lacks them."""
    adapter_layout: AdapterLayout | None = None
    """How a pipeline of this family stores adapters (`load_lora_weights`); None: it cannot load any."""

    def __init__(self, family: str) -> None:
        self.family = family

    # Reading

    def find_naming(self, keys: Sequence[str], config: Mapping[str, Any]) -> Naming | None:
        """The naming scheme of tensors with these names beside this config.json; None for another family's.

        Raises ValueError when two of them are the same tensor.
        """
        own = {key.removeprefix(NATIVE_PREFIX): key for key in keys if key.startswith(NATIVE_PREFIX)}
        return Naming(self.family, "native export", own, self.native_settings) if own else None

    def find_source(self, root: Path) -> Callable[[], WeightSource] | None:
        """What opens the weights in a folder, or a file, of a kind that only this family knows; None for any other.

        Raises UserError for one that is of this kind and damaged.
        """
        return None

    def native_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The settings in the config.json of a native export."""
        return self.settings_of(section(section(config, "model"), "config"))

    def settings_of(self, model_config: Mapping[str, Any]) -> dict[str, Any]:
        """The network's settings out of a model config as plain data. Raises ValueError for what it does not have."""
        return {}

    def network_of_run(self, model: Mapping[str, Any]) -> ModelSpec:
        """A model with the network that the `model` section of a run's config describes, and perhaps other settings."""
        return from_dict(dict(model), ModelSpec)

    def difference(self, settings: Mapping[str, Any], config: Configurable.Config) -> NetworkDifference:
        """The settings of stored weights against a model config."""
        return NetworkDifference()

    def refused(self, surplus: Sequence[str], config: Configurable.Config) -> list[str]:
        """Of the stored weights that a model has no place for those that must not be left out: an error."""
        return []

    def model_of(self, source: WeightSource, heads: Sequence[str] = ()) -> ModelSpec:
        """The model that weights belong to, with the heads asked for. Raises UserError when they do not say enough."""
        raise UserError(f"{source.describe}: weights of the family '{self.family}' are not converted")

    def head_names(self, source: WeightSource, heads: Sequence[str]) -> list[str]:
        """The beginnings of the weights' names of those heads that are asked for and the source lacks."""
        return []

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        """The model in a folder that another library has written; None when it is not of this family."""
        return None

    def weights_folder(self, config: Configurable.Config, folder: Path) -> Path:
        """Where an exported folder, or one that `read_pipeline` reads, has the weights of this model."""
        return folder

    def place_components(self, config: Configurable.Config, folder: Path) -> None:
        """Sets the paths of a model config to the components that an export holds."""

    def defaults_of_run(self, tree: Mapping[str, Any]) -> Any:
        """What a run's config says about using its model; None where a family has nothing of the kind."""
        return None

    def read_defaults(self, data: Mapping[str, Any]) -> Any:
        """The same out of an export's description."""
        return None

    def published_defaults(self, config: Configurable.Config, folder: Path) -> Any:
        """The same for weights in a folder of another library: what it says, and what their maker has published."""
        return self.read_defaults({})

    # Exporting

    def library_network(self, config: Configurable.Config) -> nn.Module | None:
        """The network of a model as the library has it that its exports are for, on the meta device; None: there is
        no such library."""
        return None

    def library_shapes(self, config: Configurable.Config) -> Mapping[str, Sequence[int]]:
        """Name and shape of all that the library's class looks for in a folder of weights."""
        network = self.library_network(config)
        return {} if network is None else {name: value.shape for name, value in network.state_dict().items()}

    def exports(self) -> dict[str, Export]:
        """The formats to export to, by name."""
        from worldsmith.checkpoint.formats.native_export import NATIVE

        return {"native": NATIVE}

    def stored_dtype(self, dtype: DType, config: Configurable.Config | None = None) -> Callable[[str], torch.dtype]:
        """The dtype of each weight in an export in `dtype`, by its name there; `config` is that of the model."""
        import torch

        target: torch.dtype = getattr(torch, dtype)
        return lambda name: target

    def native_type(self) -> str:
        """`model_type` in the config.json of a native export."""
        return self.family

    def quantizer(self, model: StoredModel, scheme: Scheme, group_size: int | None, method: Method) -> Quantizer:
        """What quantizes the model. Raises UserError when it cannot be."""
        raise UserError(f"models of the family '{self.family}' are not quantized")

    def is_quantized(self, folder: Path) -> bool:
        """Whether the weights in an exported folder are quantized: they can be used, and nothing is made of them."""
        return False

    def load_quantized(self, folder: Path, device: str | torch.device) -> Any:
        """The model of a folder for which `is_quantized` is true, ready for use."""
        raise UserError(f"models of the family '{self.family}' are not quantized")

    def pack_components(self, config: Configurable.Config, folder: Path) -> None:
        """Copies into a native export what the model needs beside its weights."""

    def pack_run(self, tree: Mapping[str, Any], folder: Path) -> None:
        """Puts into an exported folder what the run's config says, outside the model, of how it is used."""

    def exported_config(self, spec: ModelSpec) -> dict[str, Any]:
        """A model's config, as plain data, as a native export describes it."""
        return to_dict(spec)

    def left_out(self, format: str, config: Configurable.Config) -> list[str]:
        """What an export in `format` does not hold of the model, in words."""
        return []

    def card(self, name: str, about: Mapping[str, Any]) -> str:
        """The README.md of an exported folder of this name, out of what it says about itself."""
        return (
            f"# {name}\n\nThe weights of a {self.family} model under their native names (`{NATIVE_PREFIX}…`), in "
            f"{about['dtype']}, exported by Worldsmith {about['worldsmith']}. To train from it: "
            "`checkpoint.load_path` = this folder.\n"
        )

    def language_weights(self, source: WeightSource, config: Mapping[str, Any]) -> dict[str, str]:
        """For `convert --to vlm`: names in a Qwen3-VL folder with this config.json → native names of the same weights.

        Raises UserError when the language model of the source is not that of the folder.
        """
        raise self.not_converted("vlm")

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
        """Makes a model of this family out of another family's; says what came from where."""
        raise self.not_converted(self.assembled_as)

    def foreign_keys(self, format: str) -> tuple[str, Callable[[str], str]]:
        """For `convert --to FORMAT`: the stem of the weight files and native name → name in them."""
        raise self.not_converted(format)

    def foreign_config(self, format: str, spec: ModelSpec) -> dict[str, Any]:
        """For `convert --to FORMAT`: the content of config.json."""
        raise self.not_converted(format)

    def write_foreign(
        self,
        format: str,
        folder: Path,
        spec: ModelSpec,
        source: WeightSource,
        dtype_of: Callable[[str], torch.dtype],
        vae: str | None = None,
    ) -> None:
        """For `convert --to FORMAT` into files that are not safetensors: writes them, and the VAE at `vae` in its form.

        Raises ValueError for weights that the format cannot hold.
        """
        raise self.not_converted(format)

    def not_converted(self, format: str) -> UserError:
        return UserError(
            f"weights of the family '{self.family}' are not converted to {format}; give --to dcp or native"
        )

    def adapts(self, layers: Sequence[str]) -> bool:
        """Whether adapters of these layers are of a pipeline of this family; False where there are no such files."""
        return False

    def read_adapter(self, folder: Path) -> StoredAdapter:
        """The adapters of a folder in PEFT's format, by native name."""
        raise UserError(f"adapters for models of the family '{self.family}' cannot be read")

    def load_adapter(self, network: nn.Module, folder: Path) -> list[str]:
        """Gives a network the adapters of a folder in PEFT's format; returns the adapted layers' paths."""
        raise UserError(f"adapters for models of the family '{self.family}' cannot be read")
