"""`RemotePolicy`: asks a policy server, by OpenPI's WebSocket protocol (ws://…) or by JSON over HTTP (http://…)."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from worldsmith.files.errors import UserError, require_libraries
from worldsmith.sampling.policy import Observation
from worldsmith.tools.policy.messages import LIBRARIES, pack, parse_json, unpack

SCHEMES = ("http://", "https://", "ws://", "wss://")


class PolicyError(Exception):
    """A policy gave no usable chunk of actions; `kind` is "timeout", "refused", "connection" or "invalid"."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class RemotePolicy:
    """Client of a policy server. A WebSocket connection is opened by the first request, and again after an error."""

    def __init__(self, url: str, timeout: float, domain: str = "") -> None:
        """Sets the address of the server, its reply time in seconds, and the domain name in HTTP requests ("": none).

        Raises UserError if the address has an unknown scheme, or if a library of the protocol is not installed.
        """
        if not url.startswith(SCHEMES):
            raise UserError(f"{url}: expected the address of a policy server, which begins with {', '.join(SCHEMES)}")
        self.url, self.timeout, self.domain = url.rstrip("/"), timeout, domain
        self.is_http = url.startswith("http")
        self.websocket: Any = None
        if not self.is_http:
            require_libraries(*LIBRARIES)

    def get_info(self) -> dict[str, Any]:
        """Returns what the server states about its policy, such as its `PolicySpec`. Raises PolicyError."""
        return self.exchange("/info", None)

    def __call__(self, observation: Observation) -> np.ndarray:
        """Returns the chunk of actions for one observation, float32 [length, width].

        Raises PolicyError if there is no reply in time, or not a chunk.
        """
        message: dict[str, Any] = {"prompt": observation.instruction}
        if observation.seed is not None:
            message["seed"] = observation.seed
        if self.is_http:
            images = {name: encode_png(image) for name, image in observation.images.items()}
            message |= {"images": images, "state": {name: part.tolist() for name, part in observation.state.items()}}
            if len(images) == 1:  # the format of servers with one camera
                height = next(iter(observation.images.values())).shape[0]
                message |= {"image": next(iter(images.values())), "image_size": height}
            if self.domain:
                message["domain_name"] = self.domain
        else:
            arrays = {**observation.images, **observation.state}
            message |= {f"observation/{name}": array for name, array in arrays.items()}
        reply = self.exchange("/predict", message)
        try:
            chunk = np.asarray(reply["actions"] if "actions" in reply else reply["action"], np.float32)
        except (KeyError, ValueError, TypeError) as error:
            raise PolicyError("invalid", f"the reply has no array of actions: {error}") from None
        if chunk.ndim != 2 or not chunk.size or not np.isfinite(chunk).all():
            raise PolicyError("invalid", f"expected finite actions [length, width], found the shape {[*chunk.shape]}")
        return chunk

    def exchange(self, path: str, message: Mapping[str, Any] | None) -> dict[str, Any]:
        """Sends a request and returns the reply. Raises PolicyError.

        Args:
            path: Path of the request over HTTP.
            message: The request; None: what the server states about itself.
        """
        try:
            return self.exchange_http(path, message) if self.is_http else self.exchange_websocket(message)
        except Exception as error:
            # OpenPI's server closes the connection after an error; and a late reply would be taken for the next one.
            self.close()
            if isinstance(error, PolicyError):
                raise
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise PolicyError("timeout", f"no reply within {self.timeout:g} s") from None
            raise PolicyError("connection", f"{self.url}: {type(error).__name__}: {error}") from None

    def close(self) -> None:
        """Closes the WebSocket connection, if it is open; the next request opens another one."""
        websocket, self.websocket = self.websocket, None
        if websocket is not None:
            websocket.close()

    def exchange_http(self, path: str, message: Mapping[str, Any] | None) -> dict[str, Any]:
        """Sends an HTTP request, a GET request if `message` is None, and returns the reply."""
        data = None if message is None else json.dumps(message).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                reply = parse_json(response.read())
        except urllib.error.HTTPError as error:
            raise PolicyError("refused", f"status {error.code}: {error.read().decode(errors='replace'):.500}") from None
        if reply.get("error"):
            raise PolicyError("refused", f"{reply['error']!s:.500}")
        return reply

    def exchange_websocket(self, message: Mapping[str, Any] | None) -> dict[str, Any]:
        """Sends a message and returns the reply; if `message` is None, returns the metadata of a new connection."""
        from websockets.sync.client import connect

        if self.websocket is None or message is None:
            self.websocket = connect(self.url, compression=None, max_size=None, open_timeout=self.timeout)
            metadata = unpack(self.websocket.recv(timeout=self.timeout))
            if message is None:
                return metadata
        self.websocket.send(pack(message))
        reply = self.websocket.recv(timeout=self.timeout)
        if isinstance(reply, str):
            raise PolicyError("refused", f"{reply:.500}")
        return unpack(reply)


def encode_png(image: np.ndarray) -> str:
    """Returns an image, uint8 [H, W, 3], as base64 PNG."""
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
