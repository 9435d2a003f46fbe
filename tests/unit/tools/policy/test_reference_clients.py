"""The clients of the reference's LIBERO evaluation and of RoboLab reach policies of the released recipes.

Their requests are those of `simulation/libero/closed_loop_eval.py` of NVIDIA/cosmos-framework (5eee9ed) and of
`policies/cosmos3/client.py` of NVlabs/RoboLab (ed0bf3d): one image that shows all cameras.
"""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate
from websockets.sync.client import connect

from worldsmith.config import get_recipe
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.robots.robot_dataset import POLICY_SETTINGS, RobotDataset
from worldsmith.sampling.policy import ARRANGED, Observation
from worldsmith.sampling.trained_policy import TrainedPolicy
from worldsmith.tools.policy.messages import pack, unpack
from worldsmith.tools.policy.policy_server import PolicyServer

JOINTS = np.linspace(-1, 1, 7, dtype=np.float32)
WRIST, LEFT, RIGHT = "wrist_image_left", "exterior_image_1_left", "exterior_image_2_left"
LIBERO = {"image": (256, 256), "wrist_image": (256, 256)}
DROID = dict.fromkeys((WRIST, LEFT, RIGHT), (360, 640))
LIBERO_COLUMNS = {"action": 7}
DROID_COLUMNS = {
    "action.joint_position": 7,
    "action.gripper_position": 1,
    "observation.state.joint_positions": 7,
    "observation.state.gripper_position": 1,
}


class Recorder(TrainedPolicy):
    """A policy of a recipe without weights: it keeps the observations and their requests, and returns row numbers."""

    def __init__(self, recipe: str, sizes: dict[str, tuple[int, int]], columns: dict[str, int]) -> None:
        dataset: RobotDataset.Config = cast(Any, get_recipe(recipe)).dataloader_train.dataset
        if dataset.robot.statistics:
            dataset.robot.statistics = "statistics.json"
        settings = {name: to_dict(dataset)[name] for name in POLICY_SETTINGS}
        views = [row.split(" | ") for row in dataset.robot.cameras]
        cameras = [camera for row in views for camera in row]
        bounds = {"q01": [-1.0] * 10, "q99": [1.0] * 10}
        data = {
            "dataset": settings,
            "fps": 20.0,
            "columns": columns,
            "views": views,
            "sizes": {camera: list(sizes[camera.rpartition(".")[2]][::-1]) for camera in cameras},
            "statistics": {"global_raw": bounds} if dataset.robot.statistics else {},
        }
        super().__init__(data, LatentGrid(frames=4, pixels=16, patch=2), {})
        self.seen: list[Observation] = []

    def predict(self, observations: Sequence[Observation]) -> list[np.ndarray]:
        self.seen += observations
        rows = np.arange(self.spec.chunk_length, dtype=np.float32)[:, None]
        return [rows + np.zeros(self.spec.action_width, np.float32) for _ in observations]


@contextmanager
def serving(policy: TrainedPolicy) -> Iterator[str]:
    server = PolicyServer(policy, port=0)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def views(sizes: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """Smooth images, a different one for each camera."""
    found = {}
    for number, (name, (height, width)) in enumerate(sizes.items()):
        ramps = np.linspace(0, 200, width), np.linspace(40 * number, 255, height), np.full(1, 80.0 * number)
        channels = [np.broadcast_to(ramps[0], (height, width)), np.broadcast_to(ramps[1][:, None], (height, width))]
        found[name] = np.stack([*channels, np.broadcast_to(ramps[2], (height, width))], -1).astype(np.uint8)
    return found


def libero_request(images: dict[str, np.ndarray], **changes: Any) -> dict[str, Any]:
    """The payload of `predict` for two views, which have 256 rows and columns already."""
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate([*images.values()], axis=1)).save(buffer, format="PNG")
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {
        "image": encoded,
        "prompt": "put the bowl on the stove",
        "domain_name": "libero",
        "image_size": 256,
        **changes,
    }


def robolab_request(images: dict[str, np.ndarray]) -> dict[str, Any]:
    """What `_pack_request` returns: the wrist above, left and right below in half the size."""
    halves = [
        interpolate(torch.from_numpy(images[name]).permute(2, 0, 1).unsqueeze(0).float(), (180, 320), mode="bilinear")
        for name in (LEFT, RIGHT)
    ]
    below = np.concatenate([half.squeeze(0).permute(1, 2, 0).numpy().astype(np.uint8) for half in halves], axis=1)
    return {
        "observation/image": np.concatenate((images[WRIST], below)),
        "observation/joint_position": JOINTS,
        "observation/gripper_position": np.array([0.25], np.float32),
        "prompt": "open the drawer",
        "session_id": "robolab-episode-4-env-0",
    }


def post(address: str, path: str, message: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


def test_the_libero_client_of_the_reference_gets_actions() -> None:
    policy, images = Recorder("action_policy_libero_nano", LIBERO, LIBERO_COLUMNS), views(LIBERO)
    with serving(policy) as address:
        reply = post(address, "/predict", libero_request(images))
        batch = post(address, "/predict_batch", {"items": [libero_request(images)] * 2})
    assert np.array(reply["action"]).shape == (16, 10)
    assert not reply.get("error")
    assert np.array(batch["actions"]).shape == (2, 16, 10)
    assert len(policy.seen) == 3
    apart = policy.observe(Observation(images, {}, "put the bowl on the stove", 0), 0)
    for seen in policy.seen:
        assert [*seen.images] == [ARRANGED]
        request = policy.observe(seen, 0)
        assert request.condition is not None
        assert torch.equal(request.condition, cast(torch.Tensor, apart.condition))
        assert request.prompt == apart.prompt


def test_the_robolab_client_gets_actions() -> None:
    policy, images = Recorder("action_policy_droid_nano", DROID, DROID_COLUMNS), views(DROID)
    with serving(policy) as address, connect(f"ws://{address}", compression=None, max_size=None) as client:
        assert unpack(client.recv())["arranged"] == [540, 640]
        client.send(pack(robolab_request(images)))
        reply = client.recv()
        assert isinstance(reply, bytes), reply
        assert unpack(reply)["action"].shape == (32, 8)
        by_name = {f"observation/{name}": image for name, image in images.items()}
        client.send(
            pack({key: value for key, value in robolab_request(images).items() if "image" not in key} | by_name)
        )
        assert unpack(client.recv())["action"].shape == (32, 8)
    composed, apart = (policy.observe(seen, 0) for seen in policy.seen)
    assert composed.condition is not None
    assert composed.condition.shape == (3, 1, 544, 736)
    assert (composed.condition.int() - cast(torch.Tensor, apart.condition).int()).abs().max() <= 3
    for request in (composed, apart):
        assert request.actions is not None
        assert request.actions.rows[0].tolist() == pytest.approx([*JOINTS.tolist(), 0.75])  # 1 - the gripper


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image_size": 128}, r"image of all cameras: expected \(height, width\) \(256, 512\), found \(128, 256\)"),
        ({"image": "&"}, "image of all cameras is no valid PNG or JPEG"),
        ({"image": None}, "image of all cameras: expected base64 text, found NoneType"),
    ],
)
def test_a_wrong_image_of_all_cameras_is_refused(changes: dict[str, Any], reason: str) -> None:
    policy = Recorder("action_policy_libero_nano", LIBERO, LIBERO_COLUMNS)
    with serving(policy) as address:
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(address, "/predict", libero_request(views(LIBERO), **changes))
        assert caught.value.code == 400
        with connect(f"ws://{address}", compression=None) as client:
            client.recv()
            client.send(pack({"observation/image": views(LIBERO)["image"], "prompt": "x"}))
            found = client.recv()
    assert re.search(reason, json.load(caught.value)["error"])
    assert found == "image of all cameras: expected (height, width) (256, 512), found (256, 256)"
    assert policy.seen == []
