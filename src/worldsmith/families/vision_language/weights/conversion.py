"""Converts the names and shapes of weights in a folder of transformers to those of its network, and back.

Some folders store the matrices of experts separately, which the network has as one tensor; older ones have other names.
The conversion is that of the transformers library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.weight_formats import Joined
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.files.untrusted_folder import require_known_attention

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class WeightConversion:
    """Converts tensors between the layout of a model folder and that of the network that transformers builds from it.

    Args:
        config: Content of the folder's config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        import torch
        from transformers import CONFIG_MAPPING
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import PrefixChange

        from worldsmith.families.vision_language.weights.model_folder import model_class

        require_known_attention(config, "config.json")
        parsed = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
        with torch.device("meta"):
            self.model: Any = model_class(parsed)._from_config(parsed)
        self.shapes = {name: list(value.shape) for name, value in self.model.state_dict().items()}
        self.steps = get_model_conversion_mapping(self.model)
        own = get_model_conversion_mapping(self.model, add_legacy=False)
        self.model._weight_conversions = [step for step in own if not isinstance(step, PrefixChange)]

    @property
    def kept_exact(self) -> list[str]:
        """Module or parameter names whose weights transformers keeps in float32 in a bfloat16 model."""
        return sorted(self.model._keep_in_fp32_modules_strict or ())

    @property
    def only_renames(self) -> bool:
        """Whether folder and network have the same tensors, possibly under other names, so that none is converted."""
        from transformers.core_model_loading import WeightRenaming

        return all(isinstance(step, WeightRenaming) for step in self.model._weight_conversions)

    def read(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, Joined]]:
        """Maps the tensors of a model folder to the weights of the network.

        Args:
            keys: Names of the stored tensors.

        Returns:
            Two dicts by weight name in the network. The first has the weights that are stored unchanged: the tensor
            name in the folder. The second has the converted weights: the names of the stored tensors, and the function
            that converts them.
        """
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        renamings = [step for step in self.steps if isinstance(step, WeightRenaming)]
        converters = [step for step in self.steps if isinstance(step, WeightConverter)]
        own, groups = {}, dict[str, dict[str, str]]()
        for key in sorted(keys, key=dot_natural_key):
            name, pattern = rename_source_key(key, renamings, converters, self.model.base_model_prefix, self.shapes)
            if name not in self.shapes or key in self.shapes:
                own[key] = key
            elif pattern is None:
                own[name] = key
            else:
                groups.setdefault(name, {})[key] = pattern
        by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
        joined = {}
        for first, patterns in groups.items():
            converter = by_pattern[next(iter(patterns.values()))]
            ends = converter.target_patterns
            for name in (first.replace(ends[0], end, 1) for end in ends):
                make = partial(self.make, name, first, patterns, converter)
                joined[name] = Joined(tuple(patterns), self.shapes[name], make)
        return own, joined

    def make(
        self, name: str, first: str, patterns: Mapping[str, str], converter: Any, parts: Mapping[str, Tensor]
    ) -> Tensor:
        """Builds one weight of the network from the stored tensors of a model folder.

        Args:
            name: Name of the weight.
            first: Name of the first weight that `converter` builds from `parts`. The converter builds several weights
                in one call, of which the weight `name` is returned.
            patterns: Name of each stored tensor → its source pattern in `converter`.
            converter: `WeightConverter` of transformers.
            parts: The stored tensors by name.
        """
        step = deepcopy(converter)
        for key, pattern in patterns.items():
            step.add_tensor(first, key, pattern, parts[key])
        found = step.convert(first, model=self.model, config=self.model.config)[name]
        return found[0] if isinstance(found, list) else found

    def write(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Converts weights, by parameter name in the network, to tensors of a model folder, by tensor name."""
        from transformers.core_model_loading import revert_weight_conversion

        if not self.model._weight_conversions:
            return dict(weights)
        return revert_weight_conversion(self.model, dict(weights))


@cache
def conversion_of(text: str) -> WeightConversion:
    return WeightConversion(json.loads(text))


def find_conversion(config: Mapping[str, Any]) -> WeightConversion:
    """Returns the weight conversion for model folders with the config.json content `config`; cached per content."""
    return conversion_of(json.dumps(config, sort_keys=True))


class FolderWeights(WeightSource):
    """Weight source that provides the weights of a network under the tensor names and shapes of its model folder.

    Args:
        source: Weights with the parameter names of the network.
        conversion: Conversion between network and folder.

    Raises:
        ValueError: If a stored tensor needs several weights of the network.
    """

    def __init__(self, source: WeightSource, conversion: WeightConversion) -> None:
        import torch

        self.source, self.conversion = source, conversion
        self.path, self.describe, self.settings = source.path, source.describe, source.settings
        blank = {name: torch.empty(shape, device="meta") for name, shape in source.shapes.items()}
        self.shapes, self.names = {}, {}
        for name, value in blank.items():
            for key, part in conversion.write({name: value}).items():
                self.shapes[key], self.names[key] = list(part.shape), name
        if self.shapes != {key: list(part.shape) for key, part in conversion.write(blank).items()}:
            kind = conversion.model.config.model_type
            raise ValueError(
                f"models of the type '{kind}' store several weights as one tensor: export is not supported"
            )

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        for name in dict.fromkeys(self.names[key] for key in tensors):
            parts = self.conversion.write({name: self.source.read(name, average=average)})
            for key in parts.keys() & tensors.keys():
                tensors[key].copy_(parts[key])

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        return self.source.dtype(self.names[name], average=average)
