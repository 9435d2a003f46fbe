"""`Model`: the base class of the models of all families, with the config fields that they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from worldsmith.config import Configurable, WrongValueError, wrong
from worldsmith.config.declare.ranges import Count, DropoutRate, Range
from worldsmith.config.declare.search import Popular, Search
from worldsmith.config.declare.value_types import is_reference
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, ParallelismConfig
from worldsmith.models.converters.converter import Conversion, Converter, convert_network, quantized_layers
from worldsmith.models.ema import PowerEMA
from worldsmith.models.lora import inject_adapters, match_targets, read_targets
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.weights.shapes import Shapes, matrices

if TYPE_CHECKING:
    import torch
    from torch import nn

    from worldsmith.models.converters.quantized_layer import QuantizedLayer
    from worldsmith.models.network_parts import NetworkParts
    from worldsmith.models.video_model import Mode


class Model(Configurable, ABC):
    """Base class of models. A model builds a network from its config, with converters and LoRA adapters.

    The network is built in float32 on the meta device, then allocated on `device`.

    Args:
        config: Config of the model family.
        device: Device of the network, such as "cuda:0".
        seed: Seed of the initial weights. None: the weights stay uninitialized, for a caller that loads weights
            next.

    Raises:
        ValueError: If the config is invalid, or a converter or LoRA target does not fit the network.
    """

    class Config(Configurable.Config):
        family: ClassVar[str] = ""
        """Name of the family, as in `model.name` and `Family.name`."""
        task: ClassVar[str] = ""
        """Task type of the family, the value of `job.task` in a config."""
        makes: ClassVar[str] = ""
        """Output type of the model, such as "videos"; commands select their implementation by it."""
        usual_rates: ClassVar[Mapping[bool, tuple[float, float]]] = {}
        """Usual (min, max) learning rate for fine-tuning released weights; True: of adapters, False: of all weights."""
        layer_lists: ClassVar[Sequence[str]] = ()
        """Module paths of the lists of repeated layers in the network, such as "transformer_blocks"."""
        full_precision: ClassVar[Sequence[str]] = ()
        """Names (path components) of the modules that stay in float32 with all their submodules."""

        precision: Literal["bfloat16", "float16", "float32"] = "bfloat16"
        """Number format of the network's computation; trained weights are float32 in any case."""
        lora_enabled: bool = False
        """Train only LoRA adapters; all other weights are frozen."""
        lora_rank: Annotated[
            Count, Search(low=4, high=64, power_of_two=True, when="lora_enabled=true", on=True), Popular()
        ] = 16
        """Rank of the LoRA adapters."""
        lora_alpha: Annotated[
            int | float,
            Range(gt=0, finite=True),
            Search(choices=(1, 2, 4), ratio_of="lora_rank", when="lora_enabled=true", on=True),
            Popular(),
        ] = 32
        """The adapters' output is scaled by lora_alpha / lora_rank."""
        lora_dropout: DropoutRate = 0.0
        """Dropout probability of the adapters' input in training; 0 = no dropout."""
        lora_target_modules: str = ""
        """Linear layers with adapters: ends of their paths, comma-separated, or all-linear (all except the head)."""
        converters: list[Converter.Config] = field(default_factory=list)
        """Converters that change the network in this order, before adapters are added and weights are loaded."""
        ema: PowerEMA.Config = field(default_factory=PowerEMA.Config)
        """EMA weights, which export and sampling use by default."""
        parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
        """Parallelism degrees."""
        compile: CompileConfig = field(default_factory=CompileConfig)
        """torch.compile of the layers."""
        activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
        """Gradient (activation) checkpointing."""

        def check(self) -> None:
            if self.lora_enabled:
                self.match_adapters()
            elif idle := changed_lora_settings(self):
                raise wrong(
                    self,
                    *idle,
                    why="without adapters all weights would be trained",
                    remedy="set lora_enabled = true for adapters, or omit these settings",
                )
            recompute = self.activation_checkpointing
            if self.lora_dropout and recompute.mode != "none" and not recompute.preserve_rng_state:
                both = "lora_dropout", "activation_checkpointing.preserve_rng_state"
                why = "the recomputation would use another dropout mask than the forward pass"
                raise wrong(self, *both, why=why, remedy="set preserve_rng_state = true")
            if self.compile.enabled and recompute.offload:
                both = "compile.enabled", "activation_checkpointing.offload"
                why = "compiled layers would also move their weights to host RAM"
                raise wrong(self, *both, why=why, remedy="omit one of them")
            if self.compile.enabled and recompute.mode != "none" and recompute.determinism_check == "match":
                both = "compile.enabled", "activation_checkpointing.determinism_check"
                why, remedy = "values inside compiled layers cannot be compared", "set compile.enabled = false"
                raise wrong(self, *both, why=why, remedy=remedy)
            if (self.precision, self.parallelism.fsdp_master_dtype) == ("float16", "bfloat16"):
                both, remedy = ("precision", "parallelism.fsdp_master_dtype"), 'use fsdp_master_dtype = "float32"'
                raise wrong(self, *both, why="float16 requires float32 weights", remedy=remedy)
            is_frozen_offloaded = self.parallelism.offload == "frozen" and not self.lora_enabled
            if is_frozen_offloaded and not self.frozen(list(self.shapes() or ())):
                why, remedy = "this config freezes no weights", 'write "all", or use adapters (lora_enabled = true)'
                raise wrong(self, "parallelism.offload", "lora_enabled", why=why, remedy=remedy)
            self.check_context(self.parallelism.context_parallel_shard_degree)

        @property
        def sampling_network(self) -> str:
            """Second network that sampling has to load, as text for messages, such as "the pipeline's other expert".

            "": sampling needs only the trained network.
            """
            return ""

        @property
        def modes(self) -> tuple[Mode, ...]:
            """Supported generation modes of a video model, such as "text2video"; empty for other models."""
            return ()

        @property
        def action_limits(self) -> tuple[int, int] | None:
            """Max number of channels of a robot action, and number of embodiment domains; None: no action heads."""
            return None

        def check_context(self, ranks: int) -> None:
            """Raises WrongValueError if the family does not support context parallelism over `ranks` ranks."""
            if ranks != 1:
                raise WrongValueError(
                    {"parallelism.context_parallel_shard_degree": ranks},
                    why=f"models of the family '{self.family}' do not support context parallelism",
                    remedy="write 1",
                )

        def check_trained(self, patterns: Sequence[str]) -> None:
            """Raises WrongValueError if the patterns of `optimizer.keys_to_select` select no trainable parameter.

            With LoRA, each pattern must select an adapter. Without it, patterns cannot be combined with the offload of
            frozen weights.
            """
            chosen = {"optimizer.keys_to_select": list(patterns), "model.config.lora_enabled": self.lora_enabled}
            if not self.lora_enabled:
                if patterns and self.parallelism.offload == "frozen":
                    chosen["model.config.parallelism.offload"] = self.parallelism.offload
                    why = "weights that only keys_to_select freezes would stay on the GPU: memory is allocated before"
                    raise WrongValueError(chosen, why=why, remedy='use adapters, or write offload = "all"')
                if patterns and all("lora_" in pattern for pattern in patterns):
                    raise WrongValueError(
                        chosen,
                        why="only adapters are selected, but there are none: no parameter would be trained",
                        remedy="set lora_enabled = true, or select other parameters",
                    )
                return
            found = self.match_adapters()
            if found is None:
                return
            names = [f"{layer}.lora_{side}.weight" for layers in found.values() for layer in layers for side in "AB"]
            if useless := [pattern for pattern in patterns if not any(pattern in name for name in names)]:
                raise WrongValueError(
                    chosen,
                    why=f"{useless} selects none of the adapters, and only adapters are trained",
                    remedy='keep it empty or write ["lora_"]',
                )

        def check_device(self, device: str) -> None:
            """Raises UserError if this model cannot be trained on `device`, such as "cuda:0"."""

        def shapes(self) -> Shapes | None:
            """Computes the shapes of the network's parameters, without adapters, by name from the config.

            None: the shapes are known only once the network is built.
            """
            return None

        def linear_layers(self, shapes: Shapes) -> Sequence[str]:
            """Returns the paths of the network's linear layers.

            Args:
                shapes: Shapes of the network's parameters by name, from `shapes()`.
            """
            return matrices(shapes)

        def frozen(self, names: Sequence[str]) -> Collection[str]:
            """Returns the names of the parameters that the config freezes (`choose_trained`).

            Args:
                names: Names of all parameters of the network.
            """
            return ()

        def names_without_gradients(self) -> Sequence[str]:
            """Returns name prefixes of parameters that never receive gradients, even if they are trainable."""
            return ()

        def adaptable_layers(self) -> Sequence[str] | None:
            """Returns the paths of the linear layers that can get a LoRA adapter, without allocating a tensor.

            None: the layers are known only once the network is built; LoRA targets are checked then.
            """
            shapes = self.shapes()
            return () if shapes is None else self.linear_layers(shapes)

        def own_weights(self) -> tuple[str, str] | None:
            """Returns the source of the initial weights that is used if `checkpoint.load_path` is empty.

            Returns:
                The config field and its value, such as a path or hub name. None: the config names no weights.
            """
            return None

        def named_folders(self) -> Iterable[tuple[str, str, Sequence[str]]]:
            """Returns the pretrained models whose files a run needs because its config names them.

            Each entry is (config field, path or hub name, shell patterns of the required files).
            """
            return ()

        def match_adapters(self) -> Mapping[str, Sequence[str]] | None:
            """Returns the paths of the matching layers by LoRA target.

            None: the layers are known only once the network is built.

            Raises:
                ValueError: If a target matches no layer.
            """
            layers = self.adaptable_layers()
            if layers is None:
                read_targets(self.lora_target_modules)
                return None
            return match_targets(self.lora_target_modules, layers)

        def count_parameters(self) -> int | None:
            """Computes the number of elements of the network's parameters, without adapters, from the config.

            None: the number is known only once the network is built.
            """
            shapes = self.shapes()
            return None if shapes is None else sum(map(math.prod, shapes.values()))

        def without_adapters(self) -> Self:
            """Returns a copy of the model config with default `lora_*` settings and without training-only converters.

            It is the config for weights into which the adapters were merged.
            """
            return replace(self.as_used(), **changed_lora_settings(self))

        def as_used(self) -> Self:
            """Returns a copy of the model config for inference, without converters that are `training_only`."""
            return replace(self, converters=[found for found in self.converters if not found.training_only])

    config: Config
    network: nn.Module
    conversions: Sequence[Conversion]
    """Results of the converters in `config.converters`, in their order."""
    in_host_ram: Collection[str] = ()
    """Internal names of the parameters that stay in host RAM (`parallelism.offload`)."""

    def __init__(self, config: Config, *, device: str | torch.device = "cpu", seed: int | None = None) -> None:
        import torch

        config.check()
        self.config = config
        with torch.device("meta"):
            self.network = self.make_network()
            self.conversions = convert_network(self.network, self.parts, config.converters)
            if config.lora_enabled:
                inject_adapters(
                    self.network,
                    rank=config.lora_rank,
                    alpha=config.lora_alpha,
                    dropout=config.lora_dropout,
                    adaptable=config.adaptable_layers(),
                    target_modules=config.lora_target_modules,
                )
            self.choose_trained()
        self.materialize(device)
        if seed is not None:
            self.draw_weights(seed)

    @abstractmethod
    def make_network(self) -> nn.Module:
        """Builds the network without adapters; called with the meta device as default device."""

    def choose_trained(self) -> None:
        """Freezes the parameters that the config excludes from training; never unfreezes any."""

    @abstractmethod
    def parts(self) -> NetworkParts:
        """Returns the module structure for sharding, compilation and gradient checkpointing."""

    @abstractmethod
    def init_weights(self, seed: int, names: Collection[str] | None = None) -> None:
        """Initializes parameters in place; they may be sharded.

        A value must depend only on `seed` and the parameter's name, so that it is the same for any sharding.

        Args:
            seed: Seed of all values.
            names: Internal parameter names; None: all parameters.

        Raises:
            ValueError: If a name is unknown.
        """

    def materialize(self, device: str | torch.device) -> None:
        """Allocates the network on `device` without initializing it.

        The weight of a quantized layer stays on the meta device; its quantized form will be stored on `device`.
        """
        import torch

        self.device = torch.device(device)
        quantized = self.quantized_layers
        if not quantized:
            self._allocate()
            return
        from worldsmith.models.converters.quantized_layer import without_memory

        with without_memory(quantized.values()):
            self._allocate()
        for layer in quantized.values():
            layer.device = self.device

    def _allocate(self) -> None:
        """Allocates parameters and buffers on `device`, and those in `in_host_ram` on the CPU."""
        import torch

        parameters = native_parameters(self.network)
        on_host = {id(parameters[name]) for name in self.in_host_ram}
        self.network._apply(lambda t: torch.empty_like(t, device="cpu" if id(t) in on_host else self.device))

    @property
    def attention_heads(self) -> tuple[int, int, int] | None:
        """Number of query heads, number of key heads, and channels per head of the network.

        None: not known, or the network does not use the attention of PyTorch.
        """
        return None

    @property
    def quantized_layers(self) -> Mapping[str, QuantizedLayer]:
        """Layers with a quantized base weight, by the internal name of that weight; {} without such layers."""
        return quantized_layers(self.network) if self.conversions else {}

    def draw_weights(self, seed: int, names: Collection[str] | None = None) -> None:
        """Initializes parameters with `init_weights`, and quantizes the weights of layers in `quantized_layers`.

        Each of these weights is allocated in full precision only until it is quantized.

        Args:
            seed: Seed of all values.
            names: Internal parameter names; None: all parameters.
        """
        quantized = self.quantized_layers
        if not quantized:
            self.init_weights(seed, names)
            return
        from worldsmith.models.converters.quantized_layer import with_memory

        names = native_parameters(self.network) if names is None else names
        self.init_weights(seed, [name for name in names if name not in quantized])
        for name in quantized.keys() & names:
            with with_memory(quantized[name]) as value:
                self.init_weights(seed, [name])
            quantized[name].store(value)

    def cast(self, dtype: torch.dtype) -> None:
        """Converts the network to `dtype` in place; `full_precision` modules and adapters stay float32."""
        from torch import nn

        nn.Module.to(self.network, dtype)  # diffusers' own `to` warns about the float32 modules below
        adapters = [m for name, m in self.network.named_modules() if name.endswith((".lora_A", ".lora_B"))]
        for module in (*self.parts().full_precision, *adapters):
            module.float()


def changed_lora_settings(config: Model.Config) -> dict[str, Any]:
    """Returns the defaults (field name → default value) of the `lora_*` fields that differ from them in `config`.

    Fields whose value is a `${…}` reference are skipped.
    """
    defaults = {field.name: field.default for field in fields(config) if field.name.startswith("lora_")}
    changed = {name: getattr(config, name) for name, default in defaults.items() if getattr(config, name) != default}
    return {name: defaults[name] for name, value in changed.items() if not is_reference(value)}
