"""`worldsmith serve policy`: serves a trained world model as a robot policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from worldsmith.actions.action import Result
from worldsmith.actions.model_action import ModelAction, find_device
from worldsmith.checkpoint.formats.export_folder import robots_of
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.declare.ranges import Count, Factor, PositiveFactor, Range
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.files.errors import UserError, require_libraries
from worldsmith.models.video_model import NOISE_LEVELS
from worldsmith.monitor.terminal_text import print_message
from worldsmith.tools.policy.messages import LIBRARIES
from worldsmith.tools.policy.policy_server import PolicyServer

if TYPE_CHECKING:
    from worldsmith.sampling.trained_policy import TrainedPolicy


class ServePolicy(ModelAction):
    """Serves a model that was trained on robot episodes as a policy, until it is interrupted.

    Each request has the images of the robot's cameras, its state if the model was trained with one, and the task as
    text; the reply is a chunk of actions in the units of the robot. `GET /info` has the names and sizes. Protocols:
    docs/policy.md.
    """

    class Config(ModelAction.Config):
        weights: Literal["auto", "ema", "live"] = "auto"
        """auto: the EMA weights (ema) if they exist, otherwise the raw weights (live)."""
        dataset: str = ""
        """Name of the robot dataset to use, if the model was trained on several (ClipMix)."""
        host: str = "127.0.0.1"
        """Address to listen on; 0.0.0.0 accepts connections from other machines, without authentication."""
        port: Annotated[int, Range(ge=0, le=65535)] = 8000
        """TCP port; 0: a free one."""
        steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] | None = None
        """Number of solver steps; null: the model's default, such as 35."""
        guidance: Factor = 1.0
        """Scale of classifier-free guidance; 1 = off, which needs half the time."""
        shift: PositiveFactor | None = None
        """Shift of the noise schedule; null: as in training."""
        max_batch: Count = 8
        """Max number of requests that are predicted at once."""
        device: str | None = None
        """cpu or cuda; null: cuda if available."""

    config: Config

    def plan(self) -> Iterator[str]:
        model, policy = self.prepare()
        yield f"model    {model.folder} ({model.weights_description})"
        yield f"policy   {json.dumps(asdict(policy.spec))}"
        yield f"server   {self.config.host}, port {self.config.port}, on {find_device(self.config.device)}"

    def run(self) -> Result:
        config, (model, policy) = self.config, self.prepare()
        with PolicyServer(policy, config.host, config.port, max_batch=config.max_batch) as server:
            policy.model = model.load(find_device(config.device))
            host = f"[{config.host}]" if ":" in config.host else config.host
            print_message(f"serving {model.folder} at http://{host}:{server.server_port}")
            server.serve_forever()
        return Result()

    def prepare(self) -> tuple[StoredModel, TrainedPolicy]:
        """Checks the settings, and returns the model and the policy, without weights.

        Raises UserError if the model was not trained on robot episodes, or a setting does not fit it.
        """
        from worldsmith.sampling.trained_policy import TrainedPolicy, select_robot

        config = self.config
        require_libraries(*LIBRARIES)
        model = find_model(config.model, weights=config.weights, base=config.base)
        robots = robots_of(model)
        if not robots:
            raise UserError(
                f"{config.model} has no robot data: a policy is a run on robot episodes (docs/robots.md), or its export"
            )
        name = select_robot(robots, config.dataset, "--dataset")
        settings = {"steps": config.steps, "guidance": config.guidance, "shift": config.shift}
        if model.defaults.sampling(**settings).shift is None and not model.defaults.shift_of_size:
            raise UserError("the run does not define one shift of the noise schedule; set it with --shift")
        about: dict[str, Any] = {"run": model.run, "model": str(model.folder.resolve())}
        about |= {"weights": model.weights, "iteration": model.iteration}
        return model, TrainedPolicy(robots[name], LatentGrid(*model.config.latent_grid), about, **settings)
