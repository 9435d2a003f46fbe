"""Removes secrets from the records of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

REDACTED = "<redacted>"

KEPT_VARIABLES = re.compile(
    r"(WORLDSMITH|TORCH|PYTORCH|TORCHELASTIC|TORCHINDUCTOR|TORCHDYNAMO|TRITON|CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|GLOO|UCX"
    r"|OMP|MKL|KMP|GOMP|OPENBLAS|PYTHON|SLURM|PBS|LSB|MALLOC|TOKENIZERS|CONDA|LC)_\w+"
    r"|(HF|TRANSFORMERS|DIFFUSERS|XDG)_(\w+_)?(HOME|CACHE|OFFLINE|ENDPOINT|VERBOSITY)|\w+_(PATH|ROOT|DIR|PROXY)"
    r"|PATH|PYTHON\w+|HOME|USER|LOGNAME|SHELL|PWD|HOSTNAME|TMPDIR|LANG|TZ|TERM|VIRTUAL_ENV|CI"
    r"|(LOCAL_|GROUP_|ROLE_|NODE_)?RANK|(LOCAL_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NPROC_PER_NODE|NNODES",
    re.IGNORECASE,
)
"""Environment variables whose values are recorded, since they change a run. Values of others may be secret."""
SECRET_VARIABLE = re.compile(
    r"KEY|TOKEN(?!IZER)|SECRET|PASS|.PWD|CRED|AUTH|COOKIE|JWT|WEBHOOK|CONNECTION|LAUNCHER", re.IGNORECASE
)
# The last word of an option's name, so that optimizer.keys_to_select and max_num_tokens_after_packing stay readable.
SECRET_OPTION = re.compile(r"(?:^|[._-])(?:api)?(?:key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"]+@")


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns a sorted copy of environment variables in which values are redacted, except where `is_kept` is True.

    Credentials within URLs are always redacted; empty values are kept.
    """
    return {
        name: redact_urls(value) if not value or is_kept(name) else REDACTED
        for name, value in sorted(environment.items())
    }


def is_kept(name: str) -> bool:
    """Returns whether the value of environment variable `name` is recorded: `KEPT_VARIABLES` matches; not secret."""
    return KEPT_VARIABLES.fullmatch(name) is not None and not SECRET_VARIABLE.search(name)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns command-line arguments with redacted values of secret options (`--hf-token x`, `client.api_key=x`)."""
    redacted: list[str] = []
    hide_next = False
    for argument in arguments:
        name, separator, _ = argument.partition("=")
        secret = bool(SECRET_OPTION.search(name.strip("+~'\"")))
        if hide_next:
            redacted.append(REDACTED)
        elif separator and secret:
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(redact_urls(argument))
        hide_next = not hide_next and secret and not separator and argument.startswith("-")
    return redacted


def redact_urls(text: str) -> str:
    """Returns `text` with redacted credentials in URLs: `https://user:word@host` → `https://<redacted>@host`."""
    return URL_CREDENTIALS.sub(rf"\g<scheme>{REDACTED}@", text)


def redact_setting(path: str, text: str) -> str:
    """Returns the text of a config value, redacted if the name of the setting or a URL in the value is secret.

    Args:
        path: Path of the setting, such as `client.api_key`.
        text: Value of the setting as a string.
    """
    return REDACTED if text and SECRET_OPTION.search(path) else redact_urls(text)
