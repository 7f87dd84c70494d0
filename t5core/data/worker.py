"""A child process that keeps TensorFlow and SeqIO out of this one: they cost 11 s to import and hold on to memory.

The child is started once per parent, by the first call or ahead of it by `start`, and then serves one call at a time.
It dies with its parent, even one that was killed. Calls and results travel as pickles over a socket pair.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from t5core import errors

_SECONDS_TO_LEAVE = 5.0
_SECONDS_BETWEEN_LOOKS = 1.0
_QUIET = {
    "CUDA_VISIBLE_DEVICES": "-1",  # TensorFlow would take the memory that JAX needs
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONUNBUFFERED": "1",
}
# What TensorFlow says about itself at whatever log level.
_CHATTER = re.compile(r"[IWE]\d{4} |WARNING: All log messages|To enable the following instructions")

_lock = threading.RLock()
_child: _Child | None = None
# In the child: where its parent listens.
_parent: Connection | None = None


class _Child:
    """The process, the line to it, and what it writes to its standard output and error."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._line, theirs = Pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), str(self._owner)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()

    @property
    def usable(self) -> bool:
        """Whether it lives and is ours: after a fork it is the other process's."""
        return self._owner == os.getpid() and self._process.poll() is None

    def call(self, target: str, args: tuple[Any, ...], on_progress: Callable[[int], None] | None) -> Any:
        try:
            self._line.send((target, args))
            while True:
                kind, content = self._line.recv()
                if kind == "progress":
                    if on_progress is not None:
                        on_progress(content)
                elif kind == "error":
                    raise content
                else:
                    return content
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise errors.RecoverableError(self._obituary(target)) from error

    def _obituary(self, target: str) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        last = [line for line in lines if not _CHATTER.match(line)][-1:] or ["it said nothing"]
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hint = "give it more memory" if code == -signal.SIGKILL else "run again"
        return f"the SeqIO worker died ({how}) in {target}: {last[0]}; {hint}"

    def close(self) -> None:
        if self._owner != os.getpid():
            return
        self._line.close()
        try:
            self._process.wait(_SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def start() -> None:
    """Starts the child if there is none and returns at once, while it imports TensorFlow."""
    global _child  # noqa: PLW0603 - one child for the process
    with _lock:
        if _child is None or not _child.usable:
            _child = _Child()


def call(target: str, *args: Any, on_progress: Callable[[int], None] | None = None) -> Any:
    """Returns what the function `target` ("module:function") gives for `args` in the child.

    Args:
      target: the function; it, `args` and the result are pickled.
      *args: its arguments.
      on_progress: gets the amounts that the function gives to `report`.

    Raises:
      RecoverableError: the child died, for instance for want of memory.
      Exception: whatever the function raised, with the child's traceback as a note.
    """
    with _lock:
        start()
        assert _child is not None
        return _child.call(target, args, on_progress)


def stop() -> None:
    """Ends the child, which gives its memory back; the next call starts another."""
    global _child  # noqa: PLW0603 - one child for the process
    with _lock:
        if _child is not None:
            _child.close()
        _child = None


atexit.register(stop)


def report(amount: int) -> None:
    """Tells the parent, from inside a call, that `amount` more units are done; elsewhere it does nothing."""
    if _parent is not None:
        _parent.send(("progress", amount))


def serve(line: Connection, *, parent: int) -> None:
    """Answers calls from `line` until it closes; this is the child's whole life."""
    global _parent  # noqa: PLW0603 - one parent for the process
    _parent = line
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    importlib.import_module("seqio")
    while True:
        try:
            target, args = line.recv()
        except EOFError:
            return
        _answer(line, target, args)


def _die_with(parent: int) -> None:
    """Ends this process when its parent is gone, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _answer(line: Connection, target: str, args: tuple[Any, ...]) -> None:
    try:
        module, function = target.split(":")
        line.send(("result", getattr(importlib.import_module(module), function)(*args)))
    except Exception as error:  # it goes on in the parent
        line.send(("error", _portable(error, target=target)))


def _portable(error: Exception, *, target: str) -> Exception:
    """Returns an exception that the parent can read without the modules of this process."""
    if type(error).__module__ == "builtins" or isinstance(error, errors.UserError | errors.IntegrityError):
        portable = error
    else:
        portable = RuntimeError(f"{target}: {type(error).__name__}: {error}")
    portable.add_note("in the SeqIO worker:\n" + "".join(traceback.format_exception(error)))
    portable.__cause__ = portable.__context__ = None
    return portable


if __name__ == "__main__":
    # Run as a script this file is not the module that others import; that one has to serve.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        importlib.import_module("t5core.data.worker").serve(Connection(int(sys.argv[1])), parent=int(sys.argv[2]))
