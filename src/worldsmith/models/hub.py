"""Requests to the Hugging Face hub: whether it would serve a repository's files, and an explanation if not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from worldsmith.config.tree.suggest import did_you_mean_folder

SECONDS = 5.0
"""Timeout of each hub request, in seconds."""
TOKEN = "HF_TOKEN"
LOOKED = "looked for a local folder"
"""Text in every error message on files that are neither local nor on the hub; callers search for it."""


@dataclass(frozen=True, slots=True)
class HubName:
    """Hub repository, its revision (None: the default branch), and a folder or file ("": the repository's root)."""

    repo: str
    revision: str | None = None
    inner: str = ""

    def __str__(self) -> str:
        return f"{self.repo}{f'@{self.revision}' if self.revision else ''}{f'/{self.inner}' if self.inner else ''}"


class MissingPartError(Exception):
    """Raised if a hub repository exists but lacks a required file."""


def ask_hub(hub: HubName, file_patterns: Sequence[str]) -> dict[str, int]:
    """Checks that the hub would serve files; requests the file list and the header of the largest matching file.

    The header is requested because the file list of a gated repository is public, but its files are not.

    Args:
        hub: Repository, revision and folder.
        file_patterns: Shell patterns relative to the folder; a file must match the first one.

    Returns:
        Size in bytes of each matching file by its path in the repository, as stated by the hub.

    Raises:
        MissingPartError: If no file matches the first pattern.
        Exception: Any error of `huggingface_hub`, such as for a missing or gated repository.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

    info = HfApi().model_info(hub.repo, revision=hub.revision, timeout=SECONDS, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    first, *_ = patterns = patterns_from_root(hub, file_patterns)
    found = {file: size for file, size in sizes.items() if matches_pattern(file, patterns)}
    if not any(matches_pattern(file, (first, hub.inner)) for file in found):
        raise MissingPartError(f"the repository lacks '{first}'")
    largest = max(found, key=lambda file: (sizes[file], matches_pattern(file, (first,))))
    get_hf_file_metadata(hf_hub_url(hub.repo, largest, revision=hub.revision), timeout=SECONDS)
    return found


def patterns_from_root(hub: HubName, file_patterns: Sequence[str]) -> list[str]:
    """Returns file patterns relative to the repository's root, from patterns relative to the folder `hub.inner`.

    The path `hub.inner` is added as a pattern too, because it may be a file. Without `hub.inner`, the patterns are
    returned unchanged.
    """
    return [*(f"{hub.inner}/{pattern}" for pattern in file_patterns), hub.inner] if hub.inner else list(file_patterns)


def matches_pattern(file: str, file_patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in file_patterns)


def has_token() -> bool:
    """Returns whether hub requests send a token: from the environment, or stored by `hf auth login`."""
    from huggingface_hub import constants, get_token

    return not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and get_token() is not None


@contextmanager
def explain_errors(hub: HubName, field: str) -> Iterator[None]:
    """Context manager: converts errors of the hub client to a FileNotFoundError that explains the cause and a fix.

    The message also names the local folder and the cache folder in which the files were searched.

    Args:
        hub: Repository that is requested.
        field: Config field or argument that names the repository; begins the error message.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HTTPError  # of the client library that the hub's own library uses

    try:
        yield
        return
    except MissingPartError as error:
        reason, cause = str(error), None  # no cause: the repository was reached
    except (HTTPError, OSError) as error:
        reason, cause = describe_failure(hub, error), error
    not_found = f"none in {os.getcwd()}{did_you_mean_folder(hub.repo)}"
    raise FileNotFoundError(
        f"{field} {hub}: {LOOKED} '{hub.repo}' ({not_found}), in the Hugging Face cache "
        f"(not in {constants.HF_HUB_CACHE}), and on the hub: {reason}"
    ) from cause


def describe_failure(hub: HubName, error: Exception) -> str:
    """Returns the reason of a failed hub request, with a fix, as text; never contains the token."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    page, given = f"{constants.ENDPOINT}/{hub.repo}", has_token()
    status = getattr(getattr(error, "response", None), "status_code", None)
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so no request was sent; unset it, or use a local folder"
    if isinstance(error, GatedRepoError):
        if given:
            return f"the repository is gated, and the token has no access to it: accept its terms on {page}"
        return f"the repository is gated, and there is no token: accept its terms on {page} and set {TOKEN}"
    if isinstance(error, RevisionNotFoundError):
        return f"the repository has no revision '{hub.revision}'"
    if isinstance(error, RepositoryNotFoundError):
        hidden = "the token has no access to" if given else f"needs a token ({TOKEN}), which is not set"
        return f"no such repository, or a private one that {hidden}; check the name"
    if status == 401:
        problem = "rejects the token: it is wrong or has expired" if given else "requires a token, and none is set"
        return f"{constants.ENDPOINT} {problem}; set {TOKEN}"
    if status == 403:
        return f"{constants.ENDPOINT} rejects the request (403): use a token with permission to read {page}"
    if status is not None:
        return f"{constants.ENDPOINT} returns status {status}; try again later, or use a local folder"
    return (
        f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}); download the repository on a machine with "
        "network access (hf download) and use its folder, or set HF_ENDPOINT to a mirror"
    )
