"""A robot's loop with a policy server, without Worldsmith: `python examples/policy_client.py http://127.0.0.1:8000`.

It needs gym-pusht. With openpi-client, `WebsocketClientPolicy(host, port).infer(observation)["actions"]` does the same.
"""

import base64
import io
import json
import sys
import urllib.request

import gymnasium
import numpy as np
from PIL import Image


def predict(url: str, image: np.ndarray, state: np.ndarray, prompt: str) -> np.ndarray:
    """Returns the chunk of actions, [length, width], for an image uint8 [H, W, 3] and a state vector."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    images = {"image": base64.b64encode(buffer.getvalue()).decode()}
    body = json.dumps({"images": images, "state": {"state": state.tolist()}, "prompt": prompt})
    request = urllib.request.Request(url + "/predict", body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(
        request, timeout=60
    ) as response:  # an HTTPError has the reason of a refusal in its body
        return np.array(json.load(response)["action"], np.float32)


env = gymnasium.make("gym_pusht:gym_pusht/PushT-v0", obs_type="pixels_agent_pos")
observation, info = env.reset(seed=20_000)
done = False
while not done:
    prompt = "Push the T-shaped block onto the T-shaped target."
    for action in predict(sys.argv[1], observation["pixels"], observation["agent_pos"], prompt):
        observation, _, terminated, truncated, info = env.step(np.clip(action, 0, 512))
        if done := terminated or truncated:
            break
print(f"success: {info['is_success']}, the block covers {info['coverage']:.0%} of the goal")
