"""Plans the demonstrations of the PushT task in `demonstrations.npz` (about 1 s per episode).

    python examples/pusht/plan_demonstrations.py OUTPUT.npz [--seeds 0:820] [--pushes 100]

A sampling-based planner, without learning: it simulates random pushes on a copy of the environment, executes the best
one and plans again. Actions are whole pixels, so that the stored episodes replay exactly. Only successful episodes are
stored. Every 10 episodes the results so far are written and printed. Requires `worldsmith[sim]`.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import gym_pusht  # noqa: F401  (registers the environment)
import gymnasium
import numpy as np

STEP_LIMIT = 300
DETOUR_RADIUS = 105.0
"""px from the centroid of the block: the agent passes all corners at this distance."""
TRAVEL, PUSH = 45.0, 14.0
"""px per step on the way to the block, and while pushing."""
STEP_COST = 0.06


class Simulator:
    """A second copy of the environment for trial pushes, without observations."""

    def __init__(self) -> None:
        self.env = gymnasium.make("gym_pusht/PushT-v0").unwrapped
        self.env.reset(seed=0)
        goal = self.env.get_goal_pose_body(self.env.goal_pose)
        local = [corner for shape in self.env.block.shapes for corner in shape.get_vertices()]
        self.corners = np.array(local)
        self.goal = np.array([goal.local_to_world(corner) for corner in local])

    def restore(self, state: tuple) -> None:
        block, agent = self.env.block, self.env.agent
        block.angle, block.position, block.velocity, block.angular_velocity, agent.position, agent.velocity = state
        block.force, block.torque = (0, 0), 0
        self.env.space.reindex_shapes_for_body(block)
        self.env.space.reindex_shapes_for_body(agent)

    def step(self, target: tuple[float, float]) -> None:
        agent, space = self.env.agent, self.env.space
        for _ in range(10):
            (x, y), (vx, vy) = agent.position, agent.velocity
            agent.velocity = (
                vx + (100 * (target[0] - x) - 20 * vx) * 0.01,
                vy + (100 * (target[1] - y) - 20 * vy) * 0.01,
            )
            space.step(0.01)

    def distance(self) -> float:
        """Mean distance of the corners of the block to their goals, in px."""
        (x, y), angle = self.env.block.position, self.env.block.angle
        cos, sin = math.cos(angle), math.sin(angle)
        placed = self.corners @ np.array([[cos, sin], [-sin, cos]]) + (x, y)
        return float(np.sqrt(((placed - self.goal) ** 2).sum(1)).mean())

    def cost(self) -> float:
        distance = self.distance()
        return 40 * (1 - self.env._get_coverage()) if distance < 7 else distance

    def run(self, state: tuple, targets: list[tuple[float, float]], best: float) -> tuple[float, int]:
        """Cost of the path and the number of its steps that are worth executing."""
        self.restore(state)
        for count, target in enumerate(targets, 1):
            if STEP_COST * count > best:
                return math.inf, count
            self.step(target)
            if self.distance() < 3.5 and self.env._get_coverage() > 0.951:
                return STEP_COST * count - 10, count
        return self.cost() + STEP_COST * len(targets), len(targets)


def get_state(env: gymnasium.Env) -> tuple:
    block, agent = env.block, env.agent
    return block.angle, block.position, block.velocity, block.angular_velocity, agent.position, agent.velocity


OUTLINE = np.array([(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)], dtype=float)
EDGES = np.roll(OUTLINE, -1, axis=0) - OUTLINE
LENGTHS = np.sqrt((EDGES**2).sum(1))
CENTROID = np.array([0.0, 45.0])


def line(start: np.ndarray, end: np.ndarray, step: float) -> list[np.ndarray]:
    count = max(1, math.ceil(np.linalg.norm(end - start) / step))
    return [start + (end - start) * (i + 1) / count for i in range(count)]


def is_clear(start: np.ndarray, end: np.ndarray) -> bool:
    """Whether the agent can move from `start` to `end`, both in coordinates of the block, without touching it."""
    for point in line(start, end, 6.0):
        offset = point - OUTLINE
        along = np.clip((offset * EDGES).sum(1) / LENGTHS**2, 0, 1)
        if (((offset - along[:, None] * EDGES) ** 2).sum(1)).min() < 20**2:
            return False
    return True


def sample_push(env: gymnasium.Env, near: bool, random: np.random.Generator) -> list[tuple[float, float]] | None:
    """Targets of the agent: the way to a random point of the outline, and a push into the block from there."""
    edge = random.choice(len(EDGES), p=LENGTHS / LENGTHS.sum())
    contact = OUTLINE[edge] + EDGES[edge] * random.uniform(0.05, 0.95)
    angle = math.atan2(-EDGES[edge][0], EDGES[edge][1]) + random.normal(0, 0.35)
    outward = np.array([math.cos(angle), math.sin(angle)])
    to_block = lambda point: np.array(env.block.world_to_local(tuple(point)))  # noqa: E731
    start, approach = to_block(env.agent.position), contact + 26 * outward
    if is_clear(start, approach):
        path = line(start, approach, TRAVEL)
    else:
        first, last = (math.atan2(*(point - CENTROID)[::-1]) for point in (start, approach))
        turn = (last - first + math.pi) % (2 * math.pi) - math.pi
        count = max(1, math.ceil(abs(turn) * DETOUR_RADIUS / TRAVEL))
        around = [first + turn * i / count for i in range(count + 1)]
        path = [CENTROID + DETOUR_RADIUS * np.array([math.cos(a), math.sin(a)]) for a in around]
        path += line(path[-1], approach, TRAVEL)
    depth = 11 + abs(random.normal(0, 14 if near else 60))
    path += line(approach, approach - depth * outward, PUSH)
    path += [path[-1]] * 2
    points = np.array([env.block.local_to_world(tuple(point)) for point in path])
    if points.min() < 0 or points.max() > 512:
        return None
    return [tuple(point) for point in np.rint(points).tolist()]


def plan_episode(
    seed: int, pushes: int, simulator: Simulator
) -> tuple[list[tuple[float, float]], float, list[int] | None]:
    """Actions of the episode, its best coverage and, if the task is done, the target for the steps after it."""
    random = np.random.default_rng(seed)
    env = gymnasium.make("gym_pusht/PushT-v0")
    env.reset(seed=seed)
    world, actions, best_coverage = env.unwrapped, [], 0.0
    while len(actions) < STEP_LIMIT:
        state, best, chosen = get_state(world), math.inf, None
        simulator.restore(state)
        near = simulator.distance() < 25
        for _ in range(pushes):
            targets = sample_push(world, near, random)
            if targets is None:
                continue
            cost, count = simulator.run(state, targets, best + 60)
            if cost < best:
                best, chosen = cost, targets[:count]
        if chosen is None:
            break
        for target in chosen:
            _, _, terminated, truncated, info = env.step(np.array(target, dtype=np.float32))
            actions.append(target)
            best_coverage = max(best_coverage, info["coverage"])
            if terminated:
                return actions, best_coverage, plan_rest(world, simulator)
            if truncated:
                break
    return actions, best_coverage, None


def plan_rest(world: gymnasium.Env, simulator: Simulator) -> list[int]:
    """Returns the target after success at which the block covers most of the goal 16 steps later.

    If the robot only brakes, it pushes the block on by about 5 px, out of the goal. So it goes back, too, in one of
    several ways: against its velocity, or away from the block.
    """
    state, found = get_state(world), []
    position, velocity = np.array(world.agent.position), np.array(world.agent.velocity)
    away = position - np.array(world.block.local_to_world(tuple(CENTROID)))
    for number in range(8):
        back = 25.0 * (number - 4) * away / np.linalg.norm(away) if number > 4 else -0.1 * number * velocity
        target = np.rint(position + back).clip(0, 512).astype(int).tolist()
        simulator.restore(state)
        for _ in range(16):
            simulator.step(target)
        found.append((simulator.env._get_coverage(), target))
    return max(found)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", default="0:820")
    parser.add_argument("--pushes", type=int, default=100)
    options = parser.parse_args()
    seeds = range(*map(int, options.seeds.split(":")))
    simulator, kept, coverages, started = Simulator(), [], [], time.perf_counter()
    for done, seed in enumerate(seeds, 1):
        actions, coverage, rest = plan_episode(seed, options.pushes, simulator)
        coverages.append(coverage)
        if rest is not None:
            kept.append((seed, actions, rest))
        if done % 10 == 0 or done == len(seeds):
            np.savez_compressed(
                options.output,
                seeds=np.array([seed for seed, *_ in kept], dtype=np.int32),
                rests=np.array([rest for *_, rest in kept], dtype=np.int16).reshape(-1, 2),
                lengths=np.array([len(actions) for _, actions, _ in kept], dtype=np.int16),
                actions=np.array([action for _, actions, _ in kept for action in actions], dtype=np.int16).reshape(
                    -1, 2
                ),
            )
            print(
                f"{done} episodes, {len(kept)} successful, mean best coverage {np.mean(coverages):.3f}, "
                f"mean {np.mean([len(actions) for _, actions, _ in kept] or [0]):.0f} steps if successful, "
                f"{(time.perf_counter() - started) / done:.1f} s per episode",
                flush=True,
            )


if __name__ == "__main__":
    main()
