"""Requests to policy servers and their validation.

OpenPI's messages are msgpack maps with numpy arrays: `observation/NAME` for each camera and part of the state, and
`prompt`. HTTP requests are JSON objects as in the policy server of cosmos-framework for LIBERO: `image` (base64 PNG or
JPEG), `prompt`, `domain_name` and `image_size`; also `images` and `state`, by name. Both may have a `seed`, and one
`image` that shows all cameras.

Source:
    Physical-Intelligence/openpi, `openpi_client/msgpack_numpy.py`; NVIDIA/cosmos-framework,
    `scripts/action_policy_server_libero.py`; NVlabs/RoboLab, its client for policies of cosmos-framework.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from worldsmith.sampling.policy import ARRANGED, Observation, PolicySpec, RequestError

LIBRARIES = "the WebSocket protocol", "serve", "msgpack", "websockets"
"""Arguments of `require_libraries` for the libraries of the WebSocket protocol."""

MAX_PIXELS = 2**24
"""Max number of pixels of all images of a request; an image file of a few KB can decode to gigabytes."""
MAX_PROMPT = 10_000
"""Max number of characters of an instruction."""
OPENPI_NAMES = {"joint_positions": "joint_position"}
"""Part of the state -> its name in the requests of OpenPI's clients for DROID."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Encodes a message with numpy arrays as msgpack, in OpenPI's format."""
    import msgpack

    def encode(array: np.ndarray) -> dict[bytes, Any]:
        return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}

    return msgpack.packb(message, default=encode)


def unpack(data: bytes | str) -> dict[str, Any]:
    """Decodes a msgpack message with numpy arrays. Raises RequestError if it is invalid."""
    import msgpack

    def decode(value: dict[Any, Any]) -> Any:
        if b"__npgeneric__" not in value and b"__ndarray__" not in value:
            return value
        dtype = np.dtype(value[b"dtype"])
        if dtype.kind not in "biuf":  # objects would be pointers into this process
            raise ValueError(f"arrays of {dtype} are not accepted")
        if b"__npgeneric__" in value:
            return dtype.type(value[b"data"])
        return np.frombuffer(value[b"data"], dtype).reshape(value[b"shape"])

    try:
        message = msgpack.unpackb(data, object_hook=decode)
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        raise RequestError(f"the message is not valid msgpack: {error or type(error).__name__}") from None
    if not isinstance(message, dict):
        raise RequestError(f"the message must be a map, found {type(message).__name__}")
    return message


def parse_json(body: bytes) -> dict[str, Any]:
    """Parses the JSON object in a request body. Raises RequestError if it is invalid."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(message, dict):
        raise RequestError(f"the body must be a JSON object, found {type(message).__name__}")
    return message


def read_openpi_request(message: Mapping[str, Any], spec: PolicySpec) -> Observation:
    """Reads an OpenPI message. Keys without the prefix `observation/` that are not known are ignored.

    Raises RequestError if the message does not fit `spec`.
    """
    prefix = "observation/"
    given = {key[len(prefix) :]: value for key, value in message.items() if str(key).startswith(prefix)}
    names = {name: name if name in given else OPENPI_NAMES.get(name, name) for name in spec.state}
    state = {name: given.pop(sent) for name, sent in names.items() if sent in given}
    images = name_image(given["image"], spec) if given.keys() == {"image"} else given
    return check_request(images, state, message, spec)


def read_http_request(message: Any, spec: PolicySpec, max_pixels: int = MAX_PIXELS) -> Observation:
    """Reads a JSON request and decodes its images, of at most `max_pixels` pixels together.

    Raises RequestError if the request does not fit `spec`.
    """
    if not isinstance(message, dict):
        raise RequestError(f"a request must be a JSON object, found {type(message).__name__}")
    one = name_image(message["image"], spec) if "image" in message else None
    images, state = message.get("images", one), message.get("state", {})
    if not isinstance(images, dict) or not isinstance(state, dict):
        raise RequestError("images and state: expected objects with the names of GET /info as keys")
    domain, height = message.get("domain_name", spec.domain), message.get("image_size")
    if spec.domain and domain != spec.domain:
        raise RequestError(f"domain_name: this policy is for '{spec.domain}', found {domain!r:.80}")
    if height is not None and (type(height) is not int or not 0 < height <= 4096):
        raise RequestError(f"image_size: expected the image height in px, 1 to 4096, found {height!r:.80}")
    require_names("camera", images, image_sizes(images, spec))
    decoded: dict[str, np.ndarray] = {}
    for name, text in images.items():
        pixels = max_pixels - sum(image.size // 3 for image in decoded.values())
        decoded[name] = decode_image(image_label(name), text, height, pixels)
    return check_request(decoded, state, message, spec)


def decode_image(name: str, text: Any, height: int | None, max_pixels: int) -> np.ndarray:
    """Decodes a base64 PNG or JPEG image to uint8 [H, W, 3].

    Args:
        name: Name of the image, for messages.
        text: The base64 text; a prefix `data:…,` is removed.
        height: Height to resize to, with the same aspect ratio; None: the size is kept.
        max_pixels: Max number of pixels before and after resizing.

    Raises:
        RequestError: If the image is invalid or too large.
    """
    if not isinstance(text, str):
        raise RequestError(f"{name}: expected base64 text, found {type(text).__name__}")
    try:
        data = base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
        with Image.open(BytesIO(data), formats=("PNG", "JPEG")) as image:
            size = image.size if height is None else (max(1, round(image.width * height / image.height)), height)
            if max(image.width * image.height, size[0] * size[1]) > max_pixels:
                raise RequestError(f"{name}: {image.width}×{image.height} px is too large", 413)
            return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
    except (binascii.Error, OSError, SyntaxError, Image.DecompressionBombError) as error:
        status = 413 if isinstance(error, Image.DecompressionBombError) else 400
        raise RequestError(f"{name} is no valid PNG or JPEG image in base64: {error}", status) from None


def name_image(image: Any, spec: PolicySpec) -> dict[str, Any]:
    """Returns name -> `image`, the only image of a request: that of the only camera, or of all cameras."""
    return {next(iter(spec.cameras)) if len(spec.cameras) == 1 else ARRANGED if spec.arranged else "image": image}


def image_sizes(images: Mapping[str, Any], spec: PolicySpec) -> Mapping[str, tuple[int, int] | None]:
    """Returns the expected images of a request with `images`, name -> (height, width) or None for any size."""
    return {ARRANGED: spec.arranged} if spec.arranged and images.keys() == {ARRANGED} else spec.cameras


def image_label(name: str) -> str:
    """Returns the label of an image for messages."""
    return "image of all cameras" if name == ARRANGED else f"image of camera {name}"


def require_names(what: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises RequestError if `given` has other names than `expected`; `what` is the kind of the names."""
    if given.keys() != expected.keys():
        found = ", ".join(sorted(f"{name!s:.80}" for name in given)) or "none"
        raise RequestError(f"expected each {what} of: {', '.join(expected) or 'none'}; found: {found:.1000}")


def check_request(
    images: Mapping[str, Any], state: Mapping[str, Any], message: Mapping[str, Any], spec: PolicySpec
) -> Observation:
    """Checks the parts of a request and returns them as an observation.

    Args:
        images: Camera name -> uint8 array [H, W, 3]; or `ARRANGED` -> the image of all cameras.
        state: Name -> numbers of each part of the state.
        message: The request, with the keys `prompt` and, optionally, `seed`.
        spec: What the policy expects.

    Raises:
        RequestError: If a part is missing, unexpected, or has a wrong type, size or value.
    """
    sizes = image_sizes(images, spec)
    require_names("camera", images, sizes)
    require_names("part of the state", state, spec.state)
    for name, image in images.items():
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,) or not image.size:
            found = f"{image.dtype} {[*image.shape]}" if isinstance(image, np.ndarray) else type(image).__name__
            raise RequestError(f"{image_label(name)}: expected uint8 [height, width, 3], found {found}")
        size = sizes[name]
        if size is not None and image.shape[:2] != tuple(size):
            raise RequestError(f"{image_label(name)}: expected (height, width) {size}, found {image.shape[:2]}")
    parts: dict[str, np.ndarray] = {}
    for name, width in spec.state.items():
        try:
            part = np.atleast_1d(np.asarray(state[name]))
        except (ValueError, TypeError, OverflowError):
            part = np.empty(0)
        is_numeric = part.dtype.kind in "iuf" and part.shape == (width,)
        if not is_numeric or not (np.abs(part, dtype=np.float64) <= np.finfo(np.float32).max).all():
            raise RequestError(f"state {name}: expected {width} finite float32 numbers, found {state[name]!r:.80}")
        parts[name] = part.astype(np.float32)
    prompt, seed = message.get("prompt"), message.get("seed")
    if not isinstance(prompt, str) or len(prompt) > MAX_PROMPT:
        raise RequestError(f"prompt: expected text of at most {MAX_PROMPT} characters")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise RequestError(f"seed: expected an integer from 0 to 2^63 - 1, found {seed!r:.80}")
    return Observation(images, parts, prompt, seed)
