"""`Converter`: changes a network between its making and its first weight."""

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

    from worldsmith.models.converters.held_weight import HoldsWeight
    from worldsmith.models.network_parts import NetworkParts


LEAF = re.compile(r"([^.]*[^.0-9][^.]*)?(\.?[0-9]+)*$")
"""Matches the last part of a path, with the part before it if it is a number: to_q, to_out.0."""


class Converter(Configurable, ABC):
    """Changes a network that has neither memory nor adapters yet; one after the other, in the order of the list.

    Parameters keep their names and shapes, so that checkpoints and exports are those of the plain network: a module
    that wraps a layer has it as `base_layer`, which is no part of a name. What else a new module holds follows from
    its config, since no checkpoint has it; buffers get memory, and no values.
    """

    class Config(Configurable.Config):
        training_only: ClassVar[bool] = False
        """Whether the network computes the same without it, up to rounding: trained models are used without it."""

        def check_run(self, run: Any) -> None:
            """Raises WrongValueError for a run (`Trainer.Config`) that this cannot be part of."""

        def check_device(self, device: str) -> None:
            """Raises UserError for a device ("cuda:0") on which this cannot be trained."""

        def held_bytes(self, layers: Mapping[str, tuple[int, ...]]) -> Mapping[str, int] | None:
            """Returns the bytes of the quantized weights of these linear layers, by name; {} if it quantizes none.

            `layers`: path and shape of those in the repeated parts, without those of full precision. None: not known.
            """
            return None

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        """Changes the network in place, where tensors have no memory; the paths of what it has changed.

        Raises ValueError for settings that do not fit this network.
        """


@dataclass(frozen=True, slots=True)
class Conversion:
    """Result of a converter."""

    converter: str
    paths: Sequence[str]
    """Paths of the changed modules."""
    numbers: int
    """Number of elements of the weights that it stores in another format."""
    held: int
    """Bytes of that format."""

    def describe(self, bytes_per_number: int) -> str:
        """Describes the conversion for messages.

        Args:
            bytes_per_number: Bytes per element of an unconverted weight.
        """
        kinds = Counter(LEAF.search(path)[0] for path in self.paths)  # type: ignore[index]
        listing = ", ".join(f"{number} × {leaf}" for leaf, number in kinds.items())
        text = f"{self.converter}: {len(self.paths)} layer{'s' * (len(self.paths) != 1)} ({listing})"
        if self.held:
            text += (
                f"; their weights take {self.held / 2**20:.2f} MiB, not {self.numbers * bytes_per_number / 2**20:.2f}"
            )
        return text


def convert_network(
    network: nn.Module, find_parts: Callable[[], NetworkParts], converters: Sequence[Converter.Config]
) -> list[Conversion]:
    """Lets the converters change the network, in their order.

    Raises ValueError, naming the converter, when one changes nothing, or the name or shape of a parameter.

    Args:
        network: The network of a model, without memory.
        find_parts: `Model.parts`; called before each converter, since the one before may have replaced modules.
        converters: Configs of the converters.
    """
    done = []
    for index, config in enumerate(converters):
        converter: Converter = config.build()
        where = f"model.config.converters[{index}] ({type(converter).__name__})"
        shapes, held = shapes_of(network), held_weights(network)
        try:
            paths = list(converter.convert(network, find_parts()))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if not paths:
            raise ValueError(f"{where} matches no layer of this network; omit it")
        if changed := shapes_of(network).items() ^ shapes.items():
            names = sorted({name for name, _ in changed})
            raise ValueError(
                f"{where} changes name or shape of {len(names)} parameters, such as {names[0]}, but checkpoints "
                "contain plain weights; keep a wrapped layer as `base_layer`, and add no parameters"
            )
        taken = [layer for name, layer in held_weights(network).items() if name not in held]
        numbers, size = sum(layer.weight.numel() for layer in taken), sum(layer.held_bytes for layer in taken)
        done.append(Conversion(type(converter).__name__, paths, numbers, size))
    return done


def lasting(model: Any) -> list[str]:
    """Returns the classes of converters that go on with a model, out of the section `model` as plain data; unknown
    ones do."""
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


def held_weights(network: nn.Module) -> dict[str, HoldsWeight]:
    """Returns the layers that hold their weight in another form than as a parameter, by its internal parameter name."""
    from worldsmith.models.converters.held_weight import HoldsWeight

    modules = network.named_modules()
    return {native_name(f"{path}.weight"): layer for path, layer in modules if isinstance(layer, HoldsWeight)}


def linear_layers(network: nn.Module, parts: NetworkParts, leave_out: Sequence[str]) -> dict[str, nn.Linear]:
    """Returns the linear layers within the network's repeated parts that nothing has changed yet, by path.

    Those of full precision are no part of it, nor those whose path contains one of `leave_out`. Raises ValueError for
    an entry that is in no path.
    """
    from torch import nn

    inside = {module for layer in parts.layers for module in layer.modules()}
    inside -= {module for part in parts.full_precision for module in part.modules()}
    found = {path: module for path, module in network.named_modules() if module in inside and type(module) is nn.Linear}
    for pattern in leave_out:
        if not any(pattern in path for path in found):
            close = nearest(pattern, list(dict.fromkeys(path.rpartition(".")[2] for path in found)))
            advice = f"; similar paths: {', '.join(close)}" if close else ""
            raise ValueError(f"leave_out: no layer that would be changed has '{pattern}' in its path{advice}")
    return {path: module for path, module in found.items() if not any(pattern in path for pattern in leave_out)}


def replace_modules(network: nn.Module, modules: Mapping[str, nn.Module]) -> list[str]:
    """Replaces modules of the network by path; returns the paths."""
    for path, module in modules.items():
        parent, _, leaf = path.rpartition(".")
        setattr(network.get_submodule(parent), leaf, module)
    return list(modules)
