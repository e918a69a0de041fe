"""Azure Blob Storage: Azurite, Microsoft's own emulator of it, which keeps all in memory.

It checks keys and conditions (`If-Match`, `If-None-Match`) as the service does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import urllib.request
from collections.abc import Mapping
from email.utils import formatdate
from urllib.parse import urlsplit

from obstore.store import AzureStore

from .server import Server

ACCOUNT, KEY = "rankscope", base64.b64encode(b"rankscope-secret").decode()
VERSION = "2023-11-03"
"""Of Azure's protocol."""


class Azurite(Server):
    scheme = "az"
    programs = ("azurite-blob",)
    install = "npm install --global azurite"

    def start(self) -> None:
        self.variables["AZURITE_ACCOUNTS"] = f"{ACCOUNT}:{KEY}"
        at = urlsplit(self.url)
        place = ("--blobHost", str(at.hostname), "--blobPort", str(at.port))
        rest = ("--inMemoryPersistence", "--silent", "--disableTelemetry")
        self.serve("azurite-blob", *place, *rest, "--disableProductStyleUrl")
        self.wait()

    def environment(self, url: str) -> Mapping[str, str]:
        return {
            "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def make(self, bucket: str) -> None:
        # obstore makes none, and what it signs may not. So it is signed here, as Azure's
        # "Authorize with Shared Key" has it.
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
        said = "".join(f"{name}:{value}\n" for name, value in headers.items())
        resource = f"/{ACCOUNT}/{ACCOUNT}/{bucket}\nrestype:container"
        text = "PUT" + "\n" * 12 + said + resource
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.url}/{ACCOUNT}/{bucket}?restype=container"
        request = urllib.request.Request(url, method="PUT", headers=headers)
        urllib.request.urlopen(request, timeout=30).close()

    def client(self, bucket: str) -> AzureStore:
        return AzureStore(
            bucket,
            endpoint=f"{self.url}/{ACCOUNT}",
            account_name=ACCOUNT,
            account_key=KEY,
            client_options={"allow_http": True},
        )

    def path(self, bucket: str, key: str) -> str:
        return f"/{ACCOUNT}/{bucket}/{key}"
