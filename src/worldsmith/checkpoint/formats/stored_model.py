"""`StoredModel`: a model on disk, whose weights are read on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.checkpoint.formats.stored_adapter import AdaptedWeights, require_adapter_fits
from worldsmith.checkpoint.formats.weight_formats import (
    QuantizedFolders,
    WeightFormats,
    weight_formats,
)
from worldsmith.checkpoint.sources.checkpoint_weights import LIVE, CheckpointWeights
from worldsmith.checkpoint.sources.first_weights import FirstWeights, start_in
from worldsmith.checkpoint.sources.open_weights import open_checkpoint, open_weights, start_of_run
from worldsmith.checkpoint.sources.warm_start import compare_weights, read_initial_adapter
from worldsmith.checkpoint.sources.weight_source import MergedWeights, WeightSource
from worldsmith.config.errors import UserError
from worldsmith.distributed.attention_kernels import activate_flash_attention
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    import torch


WEIGHTS_NAMES = {"live": "raw weights", "ema": "EMA weights", "untrained": "untrained weights"}
"""Names of `StoredModel.weights` for messages."""


@dataclass(frozen=True)
class StoredModel:
    """A model on disk whose config is read, and whose weights are chosen (EMA, raw or initial) but not read yet."""

    folder: Path
    """Folder of the checkpoint or export with the weights; the run folder for the initial weights of a run."""
    spec: ModelSpec
    defaults: Any
    """Default generation settings, such as the size of videos: a dataclass of the model family, or None."""
    run: str
    """Name of the run that trained the model, project/group/name; empty if it is not known."""
    iteration: int
    """Number of optimizer steps for which the model was trained; 0 for the initial weights of a run."""
    weights: Literal["ema", "live", "untrained"]
    tree: Mapping[str, Any] | None
    """Complete config of the run as plain data; None for an exported folder."""
    base: str | None = None
    """Path or Hub name of the initial weights of the run; None: as in the config of the run."""
    weights_path: str | None = None
    """Path of the weights if they are in another folder than the config; None: `folder`."""
    adapter: Path | None = None
    """PEFT adapter folder; it is merged into the weights whenever they are read."""

    @property
    def config(self) -> Any:
        """Config of the model, of the class that its family defines."""
        return self.spec.config

    @property
    def formats(self) -> WeightFormats:
        """Object that recognizes and reads weights of the model's family."""
        return weight_formats(self.spec.name)

    @property
    def weights_folder(self) -> Path:
        """Folder with the weights of an exported model."""
        if self.weights_path is not None:
            return Path(self.weights_path)
        return self.formats.weights_folder(self.config, self.folder)

    @property
    def quantized(self) -> QuantizedFolders | None:
        """Object that loads the model if the weights in `folder` are quantized; None if they are not."""
        formats = self.formats
        return formats if isinstance(formats, QuantizedFolders) and formats.is_quantized(self.folder) else None

    @property
    def has_adapters(self) -> bool:
        """Whether the run of the model trained LoRA adapters."""
        return bool(getattr(self.config, "lora_enabled", False))

    @property
    def start(self) -> FirstWeights | None:
        """Path of the initial weights of the run; None if they were random, or the model is an exported folder."""
        return None if self.tree is None else start_in(self.tree, self.config)

    @property
    def merged_spec(self) -> ModelSpec:
        """Name and config of the model after its LoRA adapters are merged, that is, without adapters."""
        return ModelSpec(name=self.spec.name, config=self.config.without_adapters()) if self.has_adapters else self.spec

    @property
    def weights_description(self) -> str:
        """Description of the chosen weights, such as "EMA weights, 100 steps"."""
        return "untrained" if self.weights == "untrained" else f"{WEIGHTS_NAMES[self.weights]}, {self.iteration} steps"

    @property
    def average(self) -> bool:
        """Whether the EMA weights are chosen."""
        return self.weights == "ema"

    def open(self, *, merge: bool = True) -> WeightSource:
        """Opens the chosen weights; tensors are read only on request.

        Args:
            merge: Whether the adapters of a LoRA run are merged. The adapter in the field `adapter` is always merged.

        Raises:
            FileNotFoundError: If the weights or their base do not exist.
            UserError: If the weights cannot be read, or an adapter does not fit them.
        """
        source = self._source
        if self.adapter is not None:
            stored = self.formats.read_adapter(self.adapter)
            require_adapter_fits(stored, source)
            return MergedWeights(source, stored.alpha / stored.rank, stored.weights)
        if not merge or not any(is_adapter(name) for name in source.shapes):
            return source
        return MergedWeights(source, self.config.lora_alpha / self.config.lora_rank)

    def open_adapters(self) -> WeightSource:
        """Opens only the weights that the checkpoint of a LoRA run contains; the base weights may be missing."""
        return CheckpointWeights(self.folder / "model")

    @cached_property
    def _source(self) -> WeightSource:
        """Chosen weights without the adapter in the field `adapter`; opened and verified once, on first access."""
        if self.tree is None:
            self.require_dense()
            return open_weights(self.weights_path or self.weights_folder, field="model", family=self.spec.name)
        if self.weights == "untrained":
            start, adapter = start_of_run(self.tree, base=self.base), self.tree["checkpoint"].get("load_adapter")
            return start if adapter is None else AdaptedWeights(start, read_initial_adapter(adapter, self.spec))
        checkpoint = open_checkpoint(self.folder / "model", self.tree, base=self.base)
        checkpoint.check_frozen()
        return checkpoint

    def require_dense(self) -> None:
        """Raises UserError if the weights are quantized, because quantized weights cannot be read tensor by tensor."""
        if self.quantized is not None:
            raise UserError(
                f"{self.folder} contains quantized weights, which only `worldsmith infer` and `worldsmith evaluate` "
                "support; use the model before quantization"
            )

    def require_effect(self) -> None:
        """Raises ValueError if merging the adapters of a LoRA run would change no weight."""
        source = self.open()
        if isinstance(source, MergedWeights) and not source.changes_something(average=self.average):
            raise ValueError(
                f"the adapters in {self.folder} are all zero, as before training: merging them has no effect"
            )

    def load(
        self, device: str | torch.device = "cpu", *, full_precision: bool = False, keep_adapters: bool = False
    ) -> Any:
        """Loads the model for inference, without a second copy of the weights in memory.

        Args:
            device: Device of the weights.
            full_precision: Whether the weights are loaded in float32; False: in the dtype of the model config.
            keep_adapters: Whether the adapters of a LoRA run stay separate; False: they are merged.

        Returns:
            The model object of the family, in evaluation mode; its parameters do not require gradients.

        Raises:
            UserError: If the weights do not fit the config, are incomplete or not finite.
        """
        import torch

        activate_flash_attention(str(device))
        if self.tree is None and (quantized := self.quantized) is not None:
            if self.adapter is not None or self.config.precision != "bfloat16":
                asked = "--adapter" if self.adapter is not None else f"--dtype {self.config.precision}"
                raise UserError(f"{self.folder} contains quantized weights, which are used unchanged; omit {asked}")
            return quantized.load_quantized(self.folder, device)
        keep = keep_adapters and self.has_adapters
        config: Any = self.config if keep else self.merged_spec.config
        generator = config.build(device="meta", **({} if self.defaults is None else {"defaults": self.defaults}))
        if not full_precision:
            generator.cast(getattr(torch, config.precision))
        generator.materialize(device)
        parameters = {name: p.detach() for name, p in native_parameters(generator.network).items()}
        source = self.open(merge=not keep)
        shapes = {LIVE + name: list(parameter.shape) for name, parameter in parameters.items()}
        report = compare_weights(source, shapes, spec=self.spec)
        if report.initialised:
            raise UserError(
                f"{source.describe} is not a complete model: it lacks {len(report.initialised)} of {len(shapes)} "
                f"tensors, such as {report.initialised[0]}; use it as checkpoint.load_path of a run to train them"
            )
        source.read_into(parameters, average=self.average)
        require_finite(source.describe, non_finite(parameters))
        generator.network.eval().requires_grad_(False)
        return generator
