"""`Converter`: changes a network after it is built and before its weights are initialized."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import Configurable
from worldsmith.config.declare.class_tags import class_of
from worldsmith.config.tree.plain import TAG
from worldsmith.config.tree.suggest import nearest
from worldsmith.models.parameter_names import native_name, native_parameters

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.models.converters.quantized_layer import QuantizedLayer
    from worldsmith.models.network_parts import NetworkParts


LEAF = re.compile(r"([^.]*[^.0-9][^.]*)?(\.?[0-9]+)*$")
"""Regex for the end of a module path: the last name and the numbers after it, such as `to_q` or `to_out.0`."""


class Converter(Configurable, ABC):
    """Base class of a change to a network before its weights are allocated and adapters are added.

    Examples are float8 matmuls and quantized base weights; a config lists converters, which run in order.

    Parameters keep their names and shapes, so that checkpoints and exports are those of the unconverted network: a
    module that wraps a layer stores it as `base_layer`, a component that is removed from parameter names. Everything
    else in a new module must follow from the config of the converter, because checkpoints do not store it. Buffers of
    new modules are allocated, but not initialized.
    """

    class Config(Configurable.Config):
        training_only: ClassVar[bool] = False
        """Whether the converter changes results only by rounding errors, so that inference omits it."""

        def check_run(self, run: Any) -> None:
            """Raises WrongValueError if the converter does not fit the run config `run`, a `Trainer.Config`."""

        def check_device(self, device: str) -> None:
            """Raises UserError if a network with this converter cannot be trained on `device`, such as "cuda:0"."""

        def quantized_bytes(self, layers: Mapping[str, tuple[int, ...]]) -> Mapping[str, int] | None:
            """Computes the size of the quantized weights from the config.

            Args:
                layers: Weight shapes of the linear layers in the repeated layers, by path, without `full_precision`
                    modules.

            Returns:
                Bytes of each quantized weight by layer path; {} if the converter quantizes none. None if the sizes
                are known only once the network is built.
            """
            return None

    remark: str = ""
    """Text that follows the converter's line in reports, such as the number of skipped layers; `convert` sets it."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        """Changes `network` in place, on the meta device, and returns the paths of the changed modules.

        Raises:
            ValueError: If the settings do not fit this network.
        """


@dataclass(frozen=True, slots=True)
class Conversion:
    """Result of applying one converter to a network: the changed modules and the size of quantized weights."""

    converter: str
    paths: Sequence[str]
    """Paths of the changed modules."""
    numbers: int
    """Number of elements of the quantized weights."""
    quantized_bytes: int
    """Bytes of the quantized weights."""
    remark: str = ""
    """`Converter.remark`."""

    def describe(self, bytes_per_number: int) -> str:
        """Returns a line for messages: converter, number of changed layers, and how often each name occurs among them.

        Example: "Float8: 4 layers (2 × to_q, 2 × to_k)". If weights were quantized, "; their weights take 1.50 MiB
        instead of 4.00 MiB" follows, then the remark of the converter.

        Args:
            bytes_per_number: Bytes per element of a weight that is not quantized.
        """
        kinds = Counter(LEAF.search(path)[0] for path in self.paths)  # type: ignore[index]
        listing = ", ".join(f"{number} × {leaf}" for leaf, number in kinds.items())
        text = f"{self.converter}: {len(self.paths)} layer{'s' * (len(self.paths) != 1)} ({listing})"
        if self.quantized_bytes:
            text += (
                f"; their weights take {self.quantized_bytes / 2**20:.2f} MiB instead of "
                f"{self.numbers * bytes_per_number / 2**20:.2f} MiB"
            )
        return f"{text}; {self.remark}" if self.remark else text


def convert_network(
    network: nn.Module, find_parts: Callable[[], NetworkParts], converters: Sequence[Converter.Config]
) -> list[Conversion]:
    """Applies converters to a network in place, in the order of `converters`.

    Args:
        network: Network of a model, on the meta device.
        find_parts: `Model.parts`; called before each converter, because the previous one may have replaced modules.
        converters: Configs of the converters.

    Returns:
        One result per converter.

    Raises:
        ValueError: If a converter changes no module, or changes the name or shape of a parameter.
    """
    done = []
    for index, config in enumerate(converters):
        converter: Converter = config.build()
        where = f"model.config.converters[{index}] ({type(converter).__name__})"
        shapes, held = shapes_of(network), quantized_layers(network)
        try:
            paths = list(converter.convert(network, find_parts()))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if not paths:
            raise ValueError(f"{where} matches no layer of this network; omit it")
        if changed := shapes_of(network).items() ^ shapes.items():
            names = sorted({name for name, _ in changed})
            raise ValueError(
                f"{where} changes the names or shapes of {len(names)} parameters, such as {names[0]}, but checkpoints "
                "contain the original ones; store a wrapped layer as `base_layer`, and add no parameters"
            )
        quantized = [layer for name, layer in quantized_layers(network).items() if name not in held]
        numbers = sum(layer.weight.numel() for layer in quantized)
        size = sum(layer.quantized_bytes for layer in quantized)
        done.append(Conversion(type(converter).__name__, paths, numbers, size, converter.remark))
    return done


def lasting(model: Any) -> list[str]:
    """Returns the converters of a config that inference with the trained model needs, as class tags.

    A class tag is the value of `type` in a config section: "package.module.Class". Converters that only affect training
    (`training_only`) are omitted; a converter whose class cannot be imported is included.

    Args:
        model: The config section `model` as nested dicts and lists.
    """
    config = model.get("config") if isinstance(model, Mapping) else None
    listed = config.get("converters") if isinstance(config, Mapping) else None
    found = []
    for section in listed if isinstance(listed, list) else ():
        tag = section.get(TAG) if isinstance(section, Mapping) else None
        with suppress(ValueError):
            kind: Any = class_of(tag)
            if kind.training_only:
                continue
        found.append(str(tag))
    return found


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in native_parameters(network).items()}


def quantized_layers(network: nn.Module) -> dict[str, QuantizedLayer]:
    """Returns the layers of a network whose weight is quantized, by the internal parameter name of the weight."""
    from worldsmith.models.converters.quantized_layer import QuantizedLayer

    modules = network.named_modules()
    return {native_name(f"{path}.weight"): layer for path, layer in modules if isinstance(layer, QuantizedLayer)}


def linear_layers(network: nn.Module, parts: NetworkParts, leave_out: Sequence[str]) -> dict[str, nn.Linear]:
    """Returns the `nn.Linear` modules in the repeated layers (`parts.layers`) of a network by path, for a converter.

    Modules of another class, such as converted ones, and `full_precision` modules are excluded.

    Args:
        network: The network.
        parts: Module structure of the network.
        leave_out: Layers whose path contains one of these strings are excluded.

    Raises:
        ValueError: If an entry of `leave_out` occurs in no path.
    """
    from torch import nn

    inside = {module for layer in parts.layers for module in layer.modules()}
    inside -= {module for part in parts.full_precision for module in part.modules()}
    found = {path: module for path, module in network.named_modules() if module in inside and type(module) is nn.Linear}
    for pattern in leave_out:
        if not any(pattern in path for path in found):
            close = nearest(pattern, list(dict.fromkeys(path.rpartition(".")[2] for path in found)))
            advice = f"; similar paths: {', '.join(close)}" if close else ""
            raise ValueError(f"leave_out: no layer that the converter can change has '{pattern}' in its path{advice}")
    return {path: module for path, module in found.items() if not any(pattern in path for pattern in leave_out)}


def replace_modules(network: nn.Module, modules: Mapping[str, nn.Module]) -> list[str]:
    """Replaces modules of the network in place; `modules` maps paths to new modules. Returns the paths."""
    for path, module in modules.items():
        parent, _, leaf = path.rpartition(".")
        setattr(network.get_submodule(parent), leaf, module)
    return list(modules)
