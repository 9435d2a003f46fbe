"""`worldsmith rollout`: closed-loop evaluation of a policy in a Gymnasium environment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from worldsmith.actions.action import Action, Result, make_progress_reporter
from worldsmith.actions.processes import run_in_processes
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, NotNegative, PositiveFactor, Range, Share
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.video_writer import write_video
from worldsmith.evaluation.intervals import fraction_with_interval, mean_interval
from worldsmith.files.atomic import write_text
from worldsmith.files.errors import UserError, require_libraries
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.monitor.page.run_files import lookup
from worldsmith.monitor.page.run_page import refresh_page
from worldsmith.monitor.run_record import package_versions
from worldsmith.sampling.policy import Observation
from worldsmith.tools.policy.remote_policy import PolicyError, RemotePolicy

RESULT, VIDEOS = "rollout.json", "videos"
SEEDS_PER_EPISODE = 100_000
"""The seed of a request is that of the episode times this number, plus the step."""
BASELINES: Mapping[str, Callable[[Any], Callable[[Observation], Any]]] = {
    "random": lambda space: lambda seen: np.random.default_rng(seen.seed).uniform(space.low, space.high)[None],
    "still": lambda space: lambda seen: np.array([seen.state_vector]),
}
"""Name -> function that returns a policy for an action space."""


class Rollout(Action):
    """Runs a robot policy in a Gymnasium environment and reports how often it succeeds.

    POLICY is the address of a policy server (ws://… for OpenPI's protocol, http://… for JSON), or a baseline: random
    (uniform actions) or still (for actions that are positions: the robot stays at the position in its state). An
    episode without a reply in time, or with a refused request, counts as not successful. The results are rollout.json
    and videos.
    """

    places: ClassVar[tuple[str, ...]] = ("policy",)
    aliases: ClassVar[Mapping[str, str]] = {"-o": "out"}

    class Config(Action.Config):
        policy: str
        """Address of a policy server, or random or still."""
        environment: str
        """Id of the environment. `MODULE:ID` imports the module that registers it, such as
        gym_pusht:gym_pusht/PushT-v0."""
        options: dict[str, Any] = field(default_factory=dict)
        """Arguments of the environment, such as --options.obs_type pixels_agent_pos."""
        cameras: dict[str, str] = field(default_factory=dict)
        """Camera name of the policy -> key of the environment's observations; an empty key is the observation itself.
        The videos show the first camera."""
        state: dict[str, str] = field(default_factory=dict)
        """Name of each part of the policy's state -> key of the environment's observations."""
        instruction: str = ""
        """The task as text, as in training."""
        out: str
        """Output folder for rollout.json and videos/; in a run folder, its HTML report shows the results."""
        episodes: Annotated[int, Range(ge=1, le=100_000)] = 50
        """Number of episodes."""
        seed: Annotated[int, Range(ge=0, lt=2**32 - 100_000)] = 20_000
        """Seed of the initial state of the first episode; the others follow."""
        horizon: Count | None = None
        """Number of actions of each chunk that are executed before the policy is asked again; null: all."""
        max_steps: Count | None = None
        """Max steps of an episode; null: the limit of the environment."""
        success: str = "is_success"
        """Key of the environment's info that is true if the task is done, which ends the episode."""
        score: str = ""
        """Key of the environment's info with a score, such as coverage; empty: the reward. The score of an episode is
        the maximum over its steps."""
        environments: Count = 1
        """Number of environments that run at the same time, each in its own process."""
        timeout: PositiveFactor = 60.0
        """Max seconds to wait for a reply of the policy server."""
        domain: str = ""
        """Domain name in requests over HTTP; empty: none."""
        max_videos: NotNegative = 8
        """Number of episodes of which a video is written."""
        max_failed: Share = 0.05
        """Max fraction (0 to 1) of episodes that fail for a technical reason; if more fail, the exit code is 1."""
        force: bool = False
        """Replace the results of an earlier command."""

        def check(self) -> None:
            if self.max_videos and not self.cameras:
                raise wrong(self, "max_videos", "cameras", why="videos show the first camera",
                            remedy="set a camera, or --max-videos 0")  # fmt: skip
            if self.domain and not self.policy.startswith("http"):
                raise wrong(self, "domain", "policy", why="only requests over HTTP have a domain name",
                            remedy="omit --domain")  # fmt: skip
            if self.policy == "still" and not self.state:
                raise wrong(self, "policy", "state", why="the robot's position is unknown",
                            remedy="set a part of the state, such as --state.position agent_pos")  # fmt: skip

    config: Config

    def plan(self) -> Iterator[str]:
        config, info = self.config, self.check_together()
        yield f"policy        {config.policy}{f': {json.dumps(info)}' if info else ''}"
        yield f"environment   {config.environment}, {config.episodes} episodes from seed {config.seed}"
        yield f"metrics       {Path(config.out) / RESULT}"

    def check_together(self) -> dict[str, Any]:
        """Checks that policy and environment fit together, and returns what the server states about its policy.

        Raises UserError if the environment cannot be created, the server does not answer, or they do not fit.
        """
        config, file = self.config, Path(self.config.out) / RESULT
        if file.exists() and not config.force:
            raise UserError(f"{file} exists; choose another folder, or replace it with --force")
        env, info = make_environment(config), {}
        first = read_observation(env.reset(seed=config.seed)[0], config, 0)
        policy = make_policy(config, env.action_space)
        if isinstance(policy, RemotePolicy):
            try:
                info = policy.get_info()
            except PolicyError as error:
                raise UserError(f"the policy server does not answer: {error}") from None
            policy.close()  # its thread must not run when processes are forked
            widths = {info["action_width"]} if "action_width" in info else set()
        else:
            widths = {policy(first).shape[1]}
        for what, found in (("cameras", first.images), ("state", first.state)):
            if what in info and {*info[what]} != {*found}:
                needed = ", ".join(info[what]) or "none"
                raise UserError(f"--{what}: the policy needs {needed}; found {', '.join(found) or 'none'}")
        if widths - {env.action_space.shape[0]}:
            raise UserError(
                f"the policy has actions of width {widths}, the environment has {env.action_space.shape[0]}"
            )
        env.close()
        return info

    def run(self) -> Result:
        config, out = self.config, Path(self.config.out)
        info = self.check_together()
        require_writable(out)
        for old in (out / VIDEOS).glob("seed_*.mp4"):
            old.unlink()
        (out / VIDEOS).mkdir(parents=True, exist_ok=True)
        show = make_progress_reporter(f"{config.episodes} episodes")
        count = min(config.environments, config.episodes)
        shares = run_in_processes(self.run_share, count, lambda done: show(done, config.episodes))
        episodes = sorted((episode for share in shares for episode in share), key=lambda episode: episode.seed)
        facts: dict[str, Any] = {"policy": config.policy, **summarize_episodes(episodes), "policy_info": info}
        facts |= {"settings": to_dict(config), "versions": package_versions()}
        facts |= {"episodes": [asdict(episode) for episode in episodes]}
        write_text(out / RESULT, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        refresh_page(out)
        inputs = [Input("model", path)] if isinstance(path := lookup(info, "about.model"), str) else []
        write_lineage(out, action="rollout", settings=to_dict(config), inputs=inputs, outputs=[RESULT])
        failed = sum(facts["failures"].values())
        lines = [*format_summary(facts, config.score or "reward"), f"metrics       {out / RESULT}"]
        return Result(lines, facts, int(failed > config.max_failed * len(episodes)))

    def run_share(self, number: int, count: int, report: Callable[[int], None]) -> list[PlayedEpisode]:
        """Runs every `count`-th episode from index `number` on; `report` is called with the number of those done."""
        config, episodes = self.config, []
        env = make_environment(config)
        policy = make_policy(config, env.action_space)
        for index in range(number, config.episodes, count):
            seed = config.seed + index
            video = Path(config.out) / VIDEOS / f"seed_{seed}.mp4" if index < config.max_videos else None
            episodes.append(run_episode(env, config, policy, seed, video))
            report(len(episodes))
        env.close()
        return episodes


@dataclass(slots=True)
class PlayedEpisode:
    """Outcome of one episode."""

    seed: int
    success: bool = False
    score: float = 0.0
    """Max score over the steps."""
    reward: float = 0.0
    """Sum of the rewards."""
    steps: int = 0
    clipped: int = 0
    """Number of actions outside of the action space, which were clipped."""
    failure: str = ""
    """Why the episode ended early: the kind of a PolicyError, or "environment"; "": it did not."""
    reason: str = ""
    """Message of the failure."""


def make_policy(config: Rollout.Config, space: Any) -> Callable[[Observation], Any]:
    """Returns the baseline, or the client of the policy server, that a rollout runs in the action space `space`."""
    if config.policy in BASELINES:
        return BASELINES[config.policy](space)
    return RemotePolicy(config.policy, config.timeout, config.domain)


def make_environment(config: Rollout.Config) -> Any:
    """Creates the environment. Raises UserError if it cannot be created, has no limit of steps, or other actions."""
    require_libraries("a rollout", "sim", "gymnasium")
    import gymnasium

    limit: dict[str, Any] = {} if config.max_steps is None else {"max_episode_steps": config.max_steps}
    try:
        env = gymnasium.make(config.environment, **config.options, **limit)
    except Exception as error:  # an environment is code of another package
        raise UserError(f"environment {config.environment}: {type(error).__name__}: {error}") from error
    if env.spec is None or env.spec.max_episode_steps is None:
        raise UserError(f"environment {config.environment} has no limit of steps: set --max-steps")
    if not isinstance(env.action_space, gymnasium.spaces.Box) or len(env.action_space.shape) != 1:
        raise UserError(f"environment {config.environment}: expected actions of one vector, found {env.action_space}")
    return env


def read_observation(raw: Any, config: Rollout.Config, seed: int) -> Observation:
    """Returns an observation of the environment as that of a policy.

    Args:
        raw: The environment's observation: an array, or arrays by key.
        config: Keys of the cameras and of the state.
        seed: Seed of the policy's noise.

    Raises:
        UserError: If a key is missing, or if a camera gives no image.
    """

    def find(key: str) -> np.ndarray:
        if key and (not isinstance(raw, Mapping) or key not in raw):
            known = ", ".join(raw) if isinstance(raw, Mapping) else "one array (use an empty key)"
            raise UserError(f"observations of {config.environment} have no '{key}'; found: {known}")
        return np.asarray(raw[key] if key else raw)

    images = {name: find(key) for name, key in config.cameras.items()}
    for name, image in images.items():
        if image.dtype != np.uint8 or image.shape[2:] != (3,):
            raise UserError(f"camera {name}: expected uint8 [H, W, 3], found {image.dtype} {[*image.shape]}")
    state = {name: find(key).astype(np.float32).reshape(-1) for name, key in config.state.items()}
    return Observation(images, state, config.instruction, seed)


def run_episode(
    env: Any, config: Rollout.Config, policy: Callable[[Observation], np.ndarray], seed: int, video: Path | None = None
) -> PlayedEpisode:
    """Runs a policy until the task is done, the environment ends the episode, or something fails.

    Args:
        env: Environment of `make_environment`.
        config: How observations and info of the environment are read, and the horizon.
        policy: Returns a chunk of actions [length, width] for an observation; may raise PolicyError.
        seed: Seed of the initial state.
        video: MP4 file to write the images of the first camera to; None: no file.

    Raises:
        UserError: If the environment does not report what the config names.
    """
    episode, frames, ended = PlayedEpisode(seed), [], False
    try:
        raw, _ = env.reset(seed=seed)
        while not ended:
            chunk = policy(read_observation(raw, config, seed * SEEDS_PER_EPISODE + episode.steps))
            if not len(chunk) or chunk.shape[1:] != env.action_space.shape:
                raise PolicyError("invalid", f"actions of shape {chunk.shape}, the space has {env.action_space.shape}")
            for action in chunk[: config.horizon]:
                frames += [np.array(next(iter(read_observation(raw, config, 0).images.values())))] if video else []
                inside = np.clip(action, env.action_space.low, env.action_space.high)
                episode.clipped += bool((inside != action).any())
                raw, reward, terminated, truncated, info = env.step(inside.astype(env.action_space.dtype))
                for key in {config.success, config.score} - {"", *info}:
                    raise UserError(f"info of {config.environment} has no '{key}'; found: {', '.join(info)}")
                score = float(info[config.score] if config.score else reward)
                episode.score = max(score, episode.score) if episode.steps else score
                episode.steps, episode.reward = episode.steps + 1, episode.reward + float(reward)
                episode.success = bool(info[config.success])
                if ended := bool(terminated or truncated or episode.success):
                    break
    except UserError:
        raise
    except Exception as error:  # an environment is code of another package
        episode.failure = error.kind if isinstance(error, PolicyError) else "environment"
        episode.reason = f"{type(error).__name__}: {error}"
    if video is not None and frames:
        frames.append(next(iter(read_observation(raw, config, 0).images.values())))
        write_video(video, np.stack(frames), float(env.metadata.get("render_fps") or 10))
    return episode


def summarize_episodes(episodes: list[PlayedEpisode]) -> dict[str, Any]:
    """Returns the metrics of episodes: success rate, mean score, mean steps, count of each kind of failure.

    Episodes that failed count as not successful, with the score that they reached.
    """
    scores = [episode.score for episode in episodes]
    return {
        **fraction_with_interval("success_rate", sum(episode.success for episode in episodes), len(episodes)),
        "mean_score": sum(scores) / len(scores),
        "mean_score_interval": mean_interval(scores),
        "mean_steps": sum(episode.steps for episode in episodes) / len(episodes),
        "clipped_actions": sum(episode.clipped for episode in episodes),
        "failures": dict(Counter(episode.failure for episode in episodes if episode.failure)),
    }


def format_summary(facts: Mapping[str, Any], score: str) -> Iterator[str]:
    """Yields the output lines for the content of rollout.json; `score` is the name of the score."""
    for name, label in (("success_rate", "success rate"), ("mean_score", f"best {score}")):
        interval = facts[f"{name}_interval"]
        bracket = "" if interval is None else " [{:.3f}, {:.3f}]".format(*interval)
        yield f"{label:<14}{facts[name]:.3f}{bracket} over {len(facts['episodes'])} episodes"
    yield f"steps         {facts['mean_steps']:.0f} mean"
    if facts["clipped_actions"]:
        yield f"clipped       {facts['clipped_actions']} actions outside of the action space"
    for kind, count in facts["failures"].items():
        reason = next(episode["reason"] for episode in facts["episodes"] if episode["failure"] == kind)
        yield f"failed        {count} episodes: {kind}, such as: {reason}"
