"""Where runs lie: a path on local disk, or a URL into an object store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

from ..sketch.errors import StoreError

Scheme = Literal["s3", "gs", "az"]

SCHEMES: dict[str, str] = {"s3": "bucket", "gs": "bucket", "az": "container"}
"""What is told apart by the first name of a URL."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """A place in an object store; it reads like a path."""

    scheme: Scheme
    bucket: str
    """Of Azure the container; its account is `AZURE_STORAGE_ACCOUNT_NAME`."""
    key: str
    """What all names there begin with, without a slash at its ends."""

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def parent(self) -> ObjectUrl:
        """The place that it lies in; of a bucket the bucket itself."""
        return ObjectUrl(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def __truediv__(self, name: str) -> ObjectUrl:
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")


Place: TypeAlias = Path | ObjectUrl


def place_of(where: str | Place) -> Place:
    """The place that a string names; places stay as they are.

    Raises:
        StoreError: it is a URL that we cannot read.
    """
    if not isinstance(where, str):
        return where
    match = _URL.fullmatch(where)
    if match is None:
        name, _, rest = where.partition(":/")
        if name.lower() in SCHEMES:
            raise StoreError(f"{where} has one slash: write {name}://{rest}, or ./{where}.")
        return Path(where)
    scheme, rest = match[1].lower(), match[2]
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise StoreError(f"{where} is neither a path nor a URL that begins with {known}.")
    bucket, _, key = rest.partition("/")
    parts = [part for part in key.split("/") if part]
    if not bucket or {".", ".."}.intersection(parts):
        raise StoreError(f"{where} must be {scheme}://{SCHEMES[scheme].upper()}/FOLDER.")
    return ObjectUrl(cast("Scheme", scheme), bucket, "/".join(parts))
