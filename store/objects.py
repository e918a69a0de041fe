"""Object stores: who holds the keys, what lies where, and what went wrong, in words.

Looking around (`names_in`) and reading a run go through two libraries: Icechunk cannot list. Both
take their credentials from the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import icechunk
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from ..sketch.errors import StoreError
from .place import SCHEMES, ObjectUrl

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ClientConfig, RetryConfig

ANSWER_S = 15.0
"""How long an object store may take before the first answer, tries included."""
TRIES = 3

KEYS: Mapping[str, str] = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
ENDPOINTS: Mapping[str, Sequence[str]] = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""What may name the address of a kind of store; the last that is set counts."""

_WHY: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("nosuchbucket", "bucket does not exist", "containernotfound", "container does not exist"),
        "there is no {kind} {bucket!r}; make it first, or correct the name",
    ),
    (
        (
            "invalidaccesskeyid",
            "signaturedoesnotmatch",
            "authenticationfailed",
            "failed to authenticate",
            "invalidtoken",
            "invalid access key",
        ),
        "the credentials are refused; {keys}",
    ),
    (
        ("accessdenied", "access denied", "403 forbidden", "authorizationfailure", "status: 403"),
        "these credentials may not do that; ask for the right to list, read, write and delete",
    ),
    (
        (
            "loading credentials",
            "imds",
            "169.254.169.254",
            "metadata.google",
            "credential",
            "account must be specified",
            "missing account",
        ),
        "no credentials were found; {keys}",
    ),
    (
        ("invalidbucketname", "invalidresourcename"),
        "{bucket!r} is no name for a {kind}; correct it",
    ),
    (
        ("connection refused", "connect error", "error sending request", "dispatch failure", "dns"),
        "it cannot be reached; look at the network and {endpoint}",
    ),
    (
        ("nosuchkey", "blobnotfound", "ref not found", "no such object"),
        "some of it is gone; if it was deleted or moved, put it back, or start the collector again",
    ),
    (("timed out", "timeout"), "it does not answer; look at the network and {endpoint}"),
)
"""By words in the library's message, lower case: what to tell; the first that fits."""


def names_in(url: ObjectUrl) -> list[str]:
    """The names directly below a URL, of folders with a slash at their end; sorted.

    Raises:
        StoreError: the store cannot be asked; the message says why.
    """
    with told(url, "Cannot read"):
        found = obstore.list_with_delimiter(client(url), f"{url.key}/" if url.key else None)
        start = len(url.key) + 1 if url.key else 0
        folders = [f"{prefix.rstrip('/')[start:]}/" for prefix in found["common_prefixes"]]
        return sorted([*folders, *(item["path"][start:] for item in found["objects"])])


def delete_below(url: ObjectUrl) -> None:
    """Delete everything below a URL.

    Raises:
        StoreError: the store cannot be asked; the message says why.
    """
    with told(url, "Cannot delete"):
        asked = client(url)
        for found in obstore.list(asked, f"{url.key}/"):
            obstore.delete(asked, [item["path"] for item in found])


def keeps_conditions(url: ObjectUrl) -> bool:
    """Whether the store refuses a write whose condition does not hold, as commits need it.

    It writes one object at `url`.

    Raises:
        StoreError: the store cannot be asked; the message says why.
    """
    with told(url, "Cannot write to"):
        asked = client(url)
        first = obstore.put(asked, url.key, b"first", mode="create")
        try:
            obstore.put(asked, url.key, b"again", mode="create")
        except AlreadyExistsError:
            pass
        else:
            return False
        marks = {"e_tag": first["e_tag"], "version": first["version"]}
        known = cast("UpdateVersion", {name: mark for name, mark in marks.items() if mark})
        obstore.put(asked, url.key, b"second")
        try:
            obstore.put(asked, url.key, b"third", mode=known)
        except PreconditionError:
            return True
        return False


def client(url: ObjectUrl) -> S3Store | GCSStore | AzureStore:
    """What asks the store of `url`, with bounded patience.

    Raises:
        ValueError: the environment names no address, but something else.
    """
    address = endpoint_of(url.scheme)
    if address and not address.startswith(("http://", "https://")):
        names = " or ".join(ENDPOINTS[url.scheme])
        raise ValueError(f"{names} must begin with http:// or https://, got {address!r}.")
    each = timedelta(seconds=ANSWER_S / TRIES)
    options: ClientConfig = {"connect_timeout": each, "timeout": each}
    retry: RetryConfig = {"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=ANSWER_S)}
    options["allow_http"] = is_plain(url.scheme)
    if url.scheme == "gs":
        return GCSStore(url.bucket, client_options=options, retry_config=retry)
    if url.scheme == "az":
        return AzureStore(url.bucket, client_options=options, retry_config=retry)
    endpoint = endpoint_of("s3")
    config: dict[str, Any] = {"region": region()}  # of two types, as obstore takes them
    if endpoint:
        config |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    return S3Store(url.bucket, client_options=options, retry_config=retry, **config)


def storage_at(url: ObjectUrl) -> icechunk.Storage:
    """Where Icechunk keeps the repository of `url`."""
    if url.scheme == "gs":
        return icechunk.gcs_storage(bucket=url.bucket, prefix=url.key, from_env=True)
    if url.scheme == "az":
        return icechunk.azure_storage(
            account=os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""),
            container=url.bucket,
            prefix=url.key,
            from_env=True,
            config={"azure_allow_http": "true"} if is_plain("az") else None,
        )
    endpoint = endpoint_of("s3")
    return icechunk.s3_storage(
        bucket=url.bucket,
        prefix=url.key,
        region=region(),
        endpoint_url=endpoint,
        allow_http=is_plain("s3"),
        force_path_style=endpoint is not None,
        from_env=True,
        network_stream_timeout_seconds=int(ANSWER_S),
    )


def settings() -> icechunk.StorageSettings:
    """How patient Icechunk is; its own is half a minute for each of several requests."""
    return icechunk.StorageSettings(
        retries=icechunk.StorageRetriesSettings(
            max_tries=TRIES, initial_backoff_ms=100, max_backoff_ms=1_000
        )
    )


def endpoint_of(scheme: str) -> str | None:
    """The address that the environment names for a kind of store."""
    names = reversed(ENDPOINTS[scheme])
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def is_plain(scheme: str) -> bool:
    """Whether the endpoint is one without encryption, which has to be allowed."""
    return (endpoint_of(scheme) or "").startswith("http://")


def region() -> str:
    """The region of S3 that the environment names."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


@contextmanager
def told(url: ObjectUrl, failed: str) -> Generator[None]:
    """Say in words what the library's errors mean.

    Raises:
        StoreError: `failed`, the URL, and why.
    """
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        reason = why(url, error, lambda text: text.partition("\n")[0][:200])
        raise StoreError(f"{failed} {url}: {reason}") from error


def why(url: ObjectUrl, error: BaseException, shorten: Callable[[str], str]) -> str:
    """What an error of an object store means, and what to do."""
    # Only what it says: a traceback of Icechunk's names functions, and obstore prints its settings
    # below, and both so words that mislead.
    text = str(error).partition("\n\nDebug source:")[0].lower()
    for words, meaning in _WHY:
        if any(word in text for word in words):
            endpoint = ENDPOINTS[url.scheme][0]
            return (
                meaning.format(
                    kind=SCHEMES[url.scheme],
                    bucket=url.bucket,
                    keys=KEYS[url.scheme],
                    endpoint=f"{endpoint} ({endpoint_of(url.scheme) or 'not set'})",
                )
                + "."
            )
    return shorten(str(error))
