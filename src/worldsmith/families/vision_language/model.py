"""`VisionLanguageModel`: a vision-language model or text decoder of transformers as a model family."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.config.errors import UserError
from worldsmith.families.vision_language.freezing import freeze, frozen_names
from worldsmith.families.vision_language.network.shapes_and_flops import HEAD, linear_layers, parameter_shapes
from worldsmith.families.vision_language.policy import FILES, PolicyConfig, check_device
from worldsmith.families.vision_language.published import find_config, find_training_obstacle, published_config
from worldsmith.models.decoding import GREEDY, Decoding
from worldsmith.models.model import Model
from worldsmith.models.model_files import local_folder
from worldsmith.models.network_parts import NetworkParts
from worldsmith.models.weights.shapes import Shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.families.vision_language.inputs import Conversation

logger = logging.getLogger(__name__)


class VisionLanguageModel(Model):
    """Vision-language model or text decoder of transformers; config.json in the model folder determines its class.

    Parameters have the same names as in checkpoints of that class.

    Raises:
        ValueError: If the folder describes a network that cannot be trained here, or a pattern of `policy.freeze` or an
            adapter target matches no name.
    """

    class Config(Model.Config):
        family: ClassVar[str] = "vision_language"
        task: ClassVar[str] = "vlm"
        makes: ClassVar[str] = "answers"
        layer_lists: ClassVar[Sequence[str]] = ("model.language_model.layers", "model.visual.blocks", "model.layers")

        policy: PolicyConfig = field(default_factory=PolicyConfig)
        """The backbone and how it is trained."""

        def check(self) -> None:
            super().check()
            if self.parallelism.cfg_parallel_shard_degree != 1:
                why = "a reasoner has no guidance to share"
                raise wrong(self, "parallelism.cfg_parallel_shard_degree", why=why, remedy="write 1")

        def own_weights(self) -> tuple[str, str] | None:
            """Returns (dotted config field, its value) of the initial weights that `policy.backbone` configures.

            The field is `safetensors_path` if it is set, else `model_name`; None if both are empty.
            """
            backbone, field = self.policy.backbone, "model.config.policy.backbone"
            if backbone.safetensors_path:
                return f"{field}.safetensors_path", backbone.safetensors_path
            return (f"{field}.model_name", backbone.model_name) if backbone.model_name else None

        def named_folders(self) -> Iterable[tuple[str, str, Sequence[str]]]:
            yield "model.config.policy.backbone.model_name", self.policy.backbone.model_name, FILES

        def check_device(self, device: str) -> None:
            check_device(self.policy.attn_implementation, device)

        def shapes(self) -> Shapes | None:
            """Returns parameter shapes by name, from config.json if it is on this machine.

            If it is not, the shapes of the released model `model_name` are returned. None if there is no such released
            model, or the model type is not supported.
            """
            found = find_config(self.policy.backbone.model_name)
            return None if found is None else parameter_shapes(found)

        def describe_network(self) -> str:
            """Returns the backbone's model type as text: from config.json, or assumed to be that of the released model.

            If neither is available, the text states that the network is not known before the run starts.

            Raises:
                ValueError: If the network cannot be trained, or its config.json cannot be read.
            """
            name = self.policy.backbone.model_name
            try:
                config = find_config(name)
            except UserError as error:
                raise ValueError(str(error)) from error
            if config is None:
                return "its config.json is not on this machine, so its network is only known when the run starts"
            if (reason := find_training_obstacle(config)) is not None:
                raise ValueError(reason)
            known = "assumed to be the released one" if config == published_config(name) else "by its config.json"
            return f"a {config.get('model_type')}, {known}"

        def count_parameters(self) -> None:
            """Returns None: the count requires config.json, which is not read when recipes are listed."""

        def linear_layers(self, shapes: Shapes) -> list[str]:
            return linear_layers(shapes)

        def frozen(self, names: Sequence[str]) -> Collection[str]:
            shared = {name: [HEAD] for name in names if name.endswith("embed_tokens.weight") and HEAD not in names}
            return frozen_names(names, shared, self.policy.freeze)

        def adaptable_layers(self) -> None:
            """Returns None: the layers for adapters are known only when the network is built from config.json."""

    config: Config
    network: Any

    @cached_property
    def folder(self) -> Path:
        """The local model folder: config.json, tokenizer, chat template, preprocessor files; downloaded if needed.

        Raises:
            FileNotFoundError: If the folder is neither on this machine nor available on the hub.
            ValueError: If `model_name` is empty.
        """
        field = "model.config.policy.backbone.model_name"
        name = self.config.policy.backbone.model_name
        if not name:
            raise ValueError(f"{field} is empty; set a folder with config.json, or a hub repository (org/name)")
        return local_folder(name, file_patterns=FILES, field=field)

    def make_network(self) -> Any:
        from worldsmith.families.vision_language.network.backbone import make_network
        from worldsmith.families.vision_language.network.forward import BY_BORDERS, BY_SAMPLE

        policy = self.config.policy
        name = BY_BORDERS if self.config.compile.enabled else BY_SAMPLE
        packed = name if policy.sequence_packing else ""
        return make_network(self.folder, policy.attn_implementation, packed_attention=packed)

    def choose_trained(self) -> None:
        freeze(self.network, self.config.policy.freeze)

    def parts(self) -> NetworkParts:
        from worldsmith.families.vision_language.network.backbone import network_parts

        return network_parts(self.network)

    def init_weights(self, seed: int, names: Collection[str] | None = None) -> None:
        from worldsmith.families.vision_language.network.backbone import initialize_backbone

        initialize_backbone(self.network, seed, names)

    def materialize(self, device: str | torch.device) -> None:
        from worldsmith.families.vision_language.network.backbone import compute_buffers

        super().materialize(device)
        self.network.tie_weights(recompute_mapping=False)
        if self.device.type != "meta":
            compute_buffers(self.network)
            logger.info("attention: %s", self.describe_attention())
            logger.info("batches: %s", self.describe_batches())

    def cast(self, dtype: torch.dtype) -> None:
        """Converts the parameters to `dtype`, in place; buffers, which contain rotary frequencies, keep their dtype."""
        buffers = [
            (module, name, buffer)
            for module in self.network.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        super().cast(dtype)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer.to(self.device)

    def generate(
        self,
        prompts: Sequence[Conversation],
        *,
        normalize: Callable[[Tensor, str], Tensor],
        pad_token: int,
        max_new_tokens: int,
        decoding: Decoding = GREEDY,
        seeds: Sequence[int] = (),
    ) -> list[list[int]]:
        """Generates the tokens that follow each prompt, including the end token.

        Args:
            prompts: Conversations without the answer.
            normalize: Converts uint8 patches of an "image" or "video" to float32.
            pad_token: Id of the padding token.
            max_new_tokens: Max number of generated tokens per prompt.
            decoding: Settings of token selection.
            seeds: Seed of each prompt, required if tokens are sampled (`decoding.temperature` above 0); (): no seeds.

        Returns:
            Token ids of each answer, without padding.
        """
        from worldsmith.families.vision_language.generation import generate_tokens

        return generate_tokens(
            self.network,
            prompts,
            normalize=normalize,
            pad_token=pad_token,
            max_new_tokens=max_new_tokens,
            device=self.device,
            decoding=decoding,
            seeds=seeds,
        )

    def read(self, sample: Conversation, *, normalize: Callable[[Tensor, str], Tensor]) -> None:
        """Runs a forward pass over a conversation so that forward hooks of the network run; discards the output.

        Calibration records the inputs of layers with such hooks.

        Args:
            sample: The conversation.
            normalize: Converts uint8 patches of an "image" or "video" to float32.
        """
        from worldsmith.families.vision_language.inputs import make_inputs
        from worldsmith.families.vision_language.network.forward import hidden_states

        given = make_inputs([sample], self.network, packed=False, normalize=normalize, device=self.device)
        hidden_states(self.network, given)

    @property
    def has_vision(self) -> bool:
        """Whether the network accepts images and videos."""
        from worldsmith.families.vision_language.network.backbone import visual_of

        return visual_of(self.network) is not None

    @property
    def attention_heads(self) -> tuple[int, int, int] | None:
        text = self.network.config.get_text_config()
        heads = text.num_attention_heads
        if not self.network.config._attn_implementation.startswith("sdpa"):
            return None
        return heads, text.num_key_value_heads, getattr(text, "head_dim", None) or text.hidden_size // heads

    def describe_attention(self) -> str:
        """Returns the name of the attention implementation in use, and whether it was selected automatically."""
        used: str = self.network.config._attn_implementation.partition("_by_")[0]
        return used if used == self.config.policy.attn_implementation else f"{used}, the best available here"

    def describe_batches(self) -> str:
        """Returns the batch layout as text: all samples in one row, or one padded row per sample, with the reason."""
        from worldsmith.families.vision_language.network.backbone import find_packing_obstacle

        if self.packs:
            return "samples share one row, without padding"
        reason = find_packing_obstacle(self.network) if self.config.policy.sequence_packing else "as requested"
        return f"one row per sample, padded ({reason})"

    @property
    def packs(self) -> bool:
        """Whether the samples of a batch are packed into one row."""
        from worldsmith.families.vision_language.network.backbone import find_packing_obstacle

        return self.config.policy.sequence_packing and find_packing_obstacle(self.network) is None
