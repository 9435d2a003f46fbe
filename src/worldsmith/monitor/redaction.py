"""Taking secrets out of what a run writes about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

REDACTED = "<redacted>"

SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
# The last word of an option's name, so that optimizer.keys_to_select and max_num_tokens_after_packing stay readable.
SECRET_OPTION = re.compile(r"(?:^|[._-])(?:api)?(?:key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"]+@")


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """All variables by name; values of variables with a telling name, and credentials within URLs, are replaced."""
    return {
        name: REDACTED if SECRET_VARIABLE.search(name) and value else redact_urls(value)
        for name, value in sorted(environment.items())
    }


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without the values of options such as `--hf-token x` and `client.api_key=x`."""
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
    """`https://user:word@host` becomes `https://<redacted>@host`."""
    return URL_CREDENTIALS.sub(rf"\g<scheme>{REDACTED}@", text)
