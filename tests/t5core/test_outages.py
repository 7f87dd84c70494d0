"""Outages are told from mistakes, whichever library reports them and however deep it happened."""

import errno
import json
import pathlib
import subprocess
import sys

import aiohttp
import botocore.exceptions
import fsspec.exceptions
import gcsfs.retry
import jax
import pytest
import requests
from google.api_core import exceptions as google
from google.auth import exceptions as auth

from t5core import errors, outages, storage
from t5core.data import worker
from t5core.stages import failure


def http(code):
    return gcsfs.retry.HttpError({"code": code, "message": "said the server"})


LOST = [
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    TimeoutError("too slow"),
    fsspec.exceptions.FSTimeoutError(),
    OSError(errno.ESTALE, "stale file handle"),
    OSError(errno.EIO, "input/output error"),
    http(503),
    http(429),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("half of it came"),
    requests.exceptions.ConnectionError("refused"),
    requests.exceptions.ReadTimeout("too slow"),
    gcsfs.retry.ChecksumError("half of it came"),
    google.ServiceUnavailable("busy"),
    google.TooManyRequests("slower"),
    google.RetryError("gave up", cause=None),
    auth.TransportError("no metadata server"),
    botocore.exceptions.EndpointConnectionError(endpoint_url="https://storage.test"),
    botocore.exceptions.ReadTimeoutError(endpoint_url="https://storage.test"),
    ValueError('UNAVAILABLE: Error reading "d/zarr.json": connection refused'),
    ValueError("UNKNOWN: Gloo AllGather failed: [external/gloo/transport/tcp/pair.cc:547] Connection closed by peer"),
    jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out"),
    jax.errors.JaxRuntimeError("INTERNAL: Gloo AllReduce failed: Read error [10.0.0.2]:4420: Connection reset by peer"),
    errors.Preempted("told to stop"),
]
MISTAKES = [
    FileNotFoundError(errno.ENOENT, "no such file"),
    PermissionError(errno.EACCES, "permission denied"),
    OSError(errno.ENOSPC, "no space left"),
    OSError("Forbidden: bucket/o"),
    http(400),
    http(403),
    google.Forbidden("not yours"),
    google.NotFound("no bucket"),
    auth.DefaultCredentialsError("no credentials"),
    botocore.exceptions.NoCredentialsError(),
    ValueError("NOT_FOUND: no such array"),
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"),
    errors.ConfigError("train.total_steps=0; see https://jax.test/Connection reset by peer"),
    errors.IntegrityError("a is damaged"),
    AssertionError("ours"),
    MemoryError(),
    KeyError("a"),
]


def name(error):
    return f"{type(error).__name__}-{str(error)[:30]}"


@pytest.mark.parametrize("error", LOST, ids=name)
def test_an_outage_is_known_itself_and_as_a_cause(error):
    assert outages.is_outage(error)
    wrapped = errors.RunDirectoryError("cannot write gs://bucket/a: it was out of reach")
    wrapped.__cause__ = error
    assert outages.is_outage(wrapped)
    assert "\n" not in str(outages.recoverable(error))


@pytest.mark.parametrize("error", MISTAKES, ids=name)
def test_what_another_attempt_would_find_again_is_no_outage(error):
    assert not outages.is_outage(error)
    beside = RuntimeError("while that was handled")
    beside.__context__ = ConnectionResetError("was handled")
    assert not outages.is_outage(beside)


def test_only_outages_become_recoverable():
    with (
        pytest.raises(errors.RecoverableError, match=r"^OSError: .*stale; run again") as caught,
        outages.as_recoverable(),
    ):
        raise OSError(errno.ESTALE, "stale")
    assert caught.value.__cause__.errno == errno.ESTALE
    with pytest.raises(KeyError), outages.as_recoverable():
        raise KeyError("a")
    with pytest.raises(errors.Preempted, match="told"), outages.as_recoverable():
        raise errors.Preempted("told")


def test_a_write_in_an_outage_says_run_again_and_any_other_what_to_mend():
    lost = storage.write_refused("gs://bucket/a", aiohttp.ClientOSError(errno.ECONNRESET, "reset"))
    assert isinstance(lost, errors.RecoverableError)
    assert str(lost) == "cannot write gs://bucket/a: reset; run again"
    full = storage.write_refused("a", OSError(errno.ENOSPC, "no space left"))
    assert isinstance(full, errors.RunDirectoryError)
    assert str(full) == "cannot write a: no space left; free space or choose another run.root"


def test_an_outage_is_no_failure_of_the_run_yet(tmp_path):
    with (
        pytest.raises(errors.RecoverableError, match="the storage went away"),
        failure.recorded(str(tmp_path), where="segment to step 4"),
    ):
        raise ConnectionResetError("the storage went away")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [http(503), errors.RecoverableError("busy"), ConnectionResetError("gone")], ids=name)
def test_an_outage_in_the_worker_arrives_as_one(error):
    wrapped = errors.DataError("cannot read gs://bucket/a")
    wrapped.__cause__ = error
    for raised in (error, wrapped):
        assert isinstance(worker._portable(raised, target="a:b"), errors.RecoverableError)


def test_a_mistake_costs_no_import_of_a_client():
    code = (
        "import sys, json; from t5core import errors, outages\n"
        "before = set(sys.modules)\n"
        "for kind in (errors.ConfigError, KeyError, OSError, ValueError): outages.is_outage(kind('a'))\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
