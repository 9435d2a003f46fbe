"""A backbone of transformers: its class, built from the config only, its module structure and its initial weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from worldsmith.families.vision_language.network.forward import IN_WINDOWS, add_by_rows, loss_of
from worldsmith.families.vision_language.policy import choose_attention
from worldsmith.families.vision_language.published import TRAINED, VISUAL, find_training_obstacle
from worldsmith.files.errors import UserError
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.fill_parameters import chosen, fill, seed_of
from worldsmith.models.lora import init_adapter, is_adapter
from worldsmith.models.model_files import read_settings
from worldsmith.models.network_parts import NetworkParts
from worldsmith.models.parameter_names import native_name
from worldsmith.models.real_values import in_simulation, real_values

PACKABLE = (*VISUAL, "llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "deepseek_v3", "llama4_text")
"""Model types whose attention separates samples in a packed row by position ids; others do not, or were not tested."""
LOGIT_CHANGES = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}
"""Config settings by which a model changes its logits after the LM head → the value without effect."""
DONE = "_is_hf_initialized"
"""Attribute that marks tensors and modules which transformers does not initialize."""


def make_network(folder: Path, attention: str, *, packed_attention: str = "") -> PreTrainedModel:
    """Builds the network that config.json describes, in float32 on the default device; no weights are loaded.

    Persistent buffers (such as the bias of an expert router) become parameters without gradients, so that they are
    loaded, saved and sharded like other weights.

    Args:
        folder: Folder with config.json.
        attention: Value of `attn_implementation`.
        packed_attention: Name in transformers' attention registry of the implementation for packed rows; it replaces
            sdpa in the decoder if the network supports packing. "": none.

    Raises:
        ValueError: If this package cannot train the network, or transformers cannot build it.
    """
    settings = read_settings(folder)
    model_type = settings.get("model_type")
    visual = model_type in VISUAL
    reason = find_training_obstacle(settings)
    if reason is None and not visual and model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        reason = f"model_type is {model_type!r}; {TRAINED}"
    if reason is not None:
        raise ValueError(f"{folder / 'config.json'}: {reason}")
    with transformers_errors(folder):
        config = load_from_folder(AutoConfig, folder)
    if hasattr(config, "quantization_config"):
        raise ValueError(
            f"{folder / 'config.json'}: quantization_config: quantized weights cannot be trained; use the original "
            "model"
        )
    # the config object also contains settings that the file leaves to defaults
    if (reason := find_training_obstacle(config.to_dict())) is not None:
        raise ValueError(f"{folder / 'config.json'}: {reason}")
    text = config.get_text_config()
    for name, neutral in LOGIT_CHANGES.items():
        if getattr(text, name, neutral) not in (None, neutral):
            raise ValueError(
                f"{folder / 'config.json'}: {name} = {getattr(text, name)}: this model changes its logits after the "
                "head, which the loss over supervised tokens does not support"
            )
    kind: Any = AutoModelForImageTextToText if visual else AutoModelForCausalLM
    chosen = choose_attention(attention, kind._model_mapping[type(config)])
    with transformers_errors(folder):
        network: PreTrainedModel = kind.from_config(
            config, dtype=torch.float32, attn_implementation=chosen, trust_remote_code=False
        )
    if packed_attention and chosen == "sdpa" and find_packing_obstacle(network) is None:
        decoder_of(network).set_attn_implementation(packed_attention)
    if chosen == "sdpa" and visual:
        network.model.visual.config._attn_implementation = IN_WINDOWS
    for module in network.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name not in module._non_persistent_buffers_set:
                delattr(module, name)
                module.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    if visual:  # its result depends on the values of tokens and grids
        network.model.get_rope_index = real_values()(network.model.get_rope_index)
        decoder = decoder_of(network)
        if hasattr(decoder, "_deepstack_process"):
            decoder._deepstack_process = add_by_rows(decoder._deepstack_process)
    network.loss_of = MethodType(loss_of, network)  # type: ignore[assignment]
    return network


@contextmanager
def transformers_errors(folder: Path) -> Iterator[None]:
    """Context manager: converts errors while transformers builds a network to a ValueError that names config.json.

    `folder` contains that config.json. Out-of-memory errors and errors that already name a file are not converted.
    """
    try:
        yield
    except (OSError, UserError, torch.OutOfMemoryError):  # the message names a file, or the machine lacks memory
        raise
    except Exception as error:  # each class of transformers has errors of its own
        words = " ".join(str(error).split())
        raise ValueError(
            f"{folder / 'config.json'}: transformers cannot build the network: {type(error).__name__}: {words}"
        ) from error


def network_parts(network: Any) -> NetworkParts:
    """Returns the modules of a transformers model that FSDP and compilation must treat separately.

    Decoder layers, vision blocks and an untied embedding are sharded separately, vision blocks are not compiled, and
    modules that transformers keeps in float32 stay in full precision.
    """
    layers = [module for module in network.modules() if class_name(module) in network._no_split_modules]
    visual = visual_of(network)
    blocks = [] if visual is None else list(visual.modules())
    embeddings = network.get_input_embeddings()
    tied = network.get_output_embeddings().weight is embeddings.weight
    exact = set(network._keep_in_fp32_modules_strict or ())  # the others are kept for float16 alone
    return NetworkParts(
        layers=layers,
        uncompiled=[layer for layer in layers if any(layer is block for block in blocks)],
        units=[] if tied else [embeddings],
        full_precision=[
            module
            for name, module in network.named_modules()
            if exact & {name.rpartition(".")[2], *dict(module.named_parameters(recurse=False))}
        ],
        entries={network: ("loss_of", "generate")},
    )


def class_name(module: nn.Module) -> str:
    """Returns the class name of a module without the prefix that FSDP adds."""
    return type(module).__name__.removeprefix("FSDP")


def visual_of(network: Any) -> Any:
    """Returns the vision encoder of a transformers model, with its mergers; None for a text decoder."""
    return network.model.visual if network.config.model_type in VISUAL else None


def decoder_of(network: Any) -> Any:
    """Returns the decoder of a transformers model: embedding, layers and last norm, but not the LM head."""
    return network.model.language_model if network.config.model_type in VISUAL else network.model


def find_packing_obstacle(network: Any) -> str | None:
    """Returns the reason why `network` cannot process several samples in one row (packing); None if it can."""
    model_type = network.config.model_type
    if model_type in PACKABLE:
        return None
    return f"it is unknown whether the attention of {model_type} keeps packed samples of one row separate"


@torch.no_grad()
def initialize_backbone(network: Any, seed: int, names: Collection[str] | None = None) -> None:
    """Initializes parameters in place, sharded or not; one complete tensor exists at a time, in host RAM.

    The value of a parameter depends only on `seed` and the parameter's name.

    Args:
        network: The transformers model.
        seed: Seed of all values.
        names: Internal names of the parameters to initialize; None: all parameters.

    Raises:
        ValueError: If a name is unknown, or transformers does not initialize a parameter.
    """
    paths = {native_name(parameter_path): parameter_path for parameter_path, _ in network.named_parameters()}
    for name, parameter_path in chosen(paths, names).items():
        fill(network.get_parameter(parameter_path), initial_backbone_value(network, name, parameter_path, seed))


def initial_backbone_value(network: Any, name: str, parameter_path: str, seed: int) -> Tensor:
    """Returns the complete initial value of a parameter as a float32 tensor on the CPU.

    Args:
        network: The transformers model.
        name: Internal parameter name, which determines the random seed together with `seed`.
        parameter_path: Name of the parameter in `network.named_parameters()`.
        seed: Seed of the run.

    Raises:
        ValueError: If transformers does not initialize the parameter.
    """
    path, _, leaf = parameter_path.rpartition(".")
    owner = network.get_submodule(path)
    fresh = nn.Parameter(torch.full(network.get_parameter(parameter_path).shape, torch.nan))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, name))
        if is_adapter(name):
            return init_adapter(fresh, name).detach()
        kept = dict(owner._parameters)
        others = [tensor for key, tensor in kept.items() if key != leaf and tensor is not None]
        try:
            owner._parameters[leaf] = fresh
            with skip_initialization([*others, *owner.buffers(recurse=False)]):
                owning_model(network, path)._init_weights(owner)
        finally:
            owner._parameters.update(kept)
    if not in_simulation() and fresh.isnan().any():
        raise ValueError(
            f"transformers does not initialize {name}: set checkpoint.load_path to weights that contain it"
        )
    return fresh.detach()


def owning_model(network: Any, path: str) -> Any:
    """Returns the innermost PreTrainedModel in `network` that contains the module `path`.

    The `_init_weights` of that model initializes the module.
    """
    while path and not isinstance(network.get_submodule(path), PreTrainedModel):
        path = path.rpartition(".")[0]
    return network.get_submodule(path)


@torch.no_grad()
def compute_buffers(network: Any) -> None:
    """Computes in place the buffers that checkpoints do not contain, such as rotary frequencies.

    Raises:
        RuntimeError: If transformers does not compute a buffer, which would stay uninitialized.
    """
    for path, owner in network.named_modules():
        buffers = dict(owner.named_buffers(recurse=False))
        if not buffers:
            continue
        for buffer in buffers.values():
            buffer.fill_(torch.nan) if buffer.is_floating_point() or buffer.is_complex() else buffer.zero_()
        with skip_initialization(owner.parameters(recurse=False)):
            owning_model(network, path)._init_weights(owner)
        for name, buffer in owner.named_buffers(recurse=False):
            if not in_simulation() and buffer.isnan().any():
                raise RuntimeError(f"transformers does not compute the buffer {path}.{name}, so it is uninitialized")


class skip_initialization:  # noqa: N801 (a context manager)
    """Context manager: within the block, transformers does not initialize the tensors in the iterable `tensors`.

    Items of `tensors` that are None are ignored.
    """

    def __init__(self, tensors: Any) -> None:
        self.tensors = [tensor for tensor in tensors if tensor is not None]

    def __enter__(self) -> None:
        for tensor in self.tensors:
            setattr(tensor, DONE, True)

    def __exit__(self, *_: object) -> None:
        for tensor in self.tensors:
            delattr(tensor, DONE)
