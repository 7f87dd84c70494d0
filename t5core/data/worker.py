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
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from t5core import errors, named, outages

_MODULE = "t5core.data.worker"
_SECONDS_TO_LEAVE = 5.0
_SECONDS_BETWEEN_LOOKS = 1.0
_QUIET = {
    "CUDA_VISIBLE_DEVICES": "-1",  # TensorFlow would take the memory that JAX needs
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONUNBUFFERED": "1",
}
# What TensorFlow says about itself at whatever log level.
_CHATTER = re.compile(r"[IWE]\d{4} |WARNING: All log messages|To enable the following instructions")


class Worker:
    """One child process, the line to it, and what it writes to its standard output and error.

    Args:
      preload: the module that the child imports before it answers its first call.
    """

    def __init__(self, *, preload: str = "seqio") -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._answered = False
        self._line, theirs = Pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(theirs.fileno()), str(self._owner), preload],
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
        return self._owner == os.getpid() and not self._line.closed and self._process.poll() is None

    def call(self, target: str, *args: Any, on_progress: Callable[[int], None] | None = None) -> Any:
        """Returns what the function `target` ("module:function") gives for `args` in the child.

        Args:
          target: the function; its arguments and its result are pickled.
          *args: its arguments.
          on_progress: gets the amounts that the function gives to `report`.

        Raises:
          RecoverableError: the child died, for instance for want of memory.
          Exception: whatever the function raised, with the child's traceback as a note.
        """
        with self._lock:
            if self._line.closed:
                raise errors.RecoverableError(self._obituary(target))
            try:
                self._line.send((target, args))
                kind, content = self._answer(on_progress)
            except (EOFError, BrokenPipeError, ConnectionResetError) as error:
                raise errors.RecoverableError(self._obituary(target)) from error
            except BaseException:
                self._process.kill()
                self._line.close()  # what it has said already would be taken for the answer to the next call
                raise
            self._answered = True
        if kind == "error":
            raise content
        return content

    def _answer(self, on_progress: Callable[[int], None] | None) -> tuple[str, Any]:
        while True:
            kind, content = self._line.recv()
            if kind != "progress":
                return kind, content
            if on_progress is not None:
                on_progress(content)

    def _obituary(self, target: str) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        last = [line for line in lines if not _CHATTER.match(line)][-1:] or ["it said nothing"]
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hint = "give it more memory" if code == -signal.SIGKILL else "run again"
        return f"the data worker died ({how}) in {target}: {last[0]}; {hint}"

    def kill(self) -> None:
        """Ends the child at once; a call under way fails with a RecoverableError."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the child: at once if it waits for a call or still imports, else after a moment."""
        if self._owner != os.getpid():
            return
        self._line.close()
        if not self._answered:
            self._process.kill()
        try:
            self._process.wait(_SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


_lock = threading.RLock()
_worker: Worker | None = None


def start() -> Worker:
    """Returns this process's worker, started if there is none; TensorFlow is imported while the caller goes on."""
    global _worker  # noqa: PLW0603 - one for the process
    with _lock:
        if _worker is not None and not _worker.usable:
            stop()
        if _worker is None:
            _worker = Worker()
        return _worker


def call(target: str, *args: Any, on_progress: Callable[[int], None] | None = None) -> Any:
    """Returns what `Worker.call` gives on this process's worker."""
    return start().call(target, *args, on_progress=on_progress)


def stop() -> None:
    """Ends this process's worker, which gives its memory back; the next call starts another."""
    global _worker  # noqa: PLW0603 - one for the process
    with _lock:
        if _worker is not None:
            _worker.close()
        _worker = None


atexit.register(stop)

# Who is told of progress: in the child, the parent.
_listener: Callable[[int], None] | None = None


def report(amount: int) -> None:
    """Tells whoever called, from inside a call, that `amount` more units are done; elsewhere it does nothing."""
    if _listener is not None:
        _listener(amount)


@contextlib.contextmanager
def reporting_to(listener: Callable[[int], None] | None) -> Iterator[None]:
    """Has `report` tell `listener`, for a call that is answered in this process."""
    global _listener  # noqa: PLW0603 - one for the process
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def serve(line: Connection, *, parent: int, preload: str) -> None:
    """Answers calls from `line` until it closes; this is the child's whole life."""
    global _listener  # noqa: PLW0603 - one for the process
    _listener = lambda amount: line.send(("progress", amount))  # noqa: E731 - a def would be no shorter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    importlib.import_module(preload)
    while True:
        try:
            target, args = line.recv()
        except EOFError:
            return
        _serve_one(line, target, args)


def _die_with(parent: int) -> None:
    """Ends this process when its parent is gone, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _serve_one(line: Connection, target: str, args: tuple[Any, ...]) -> None:
    try:
        line.send(("result", named.target(target)(*args)))
    except Exception as error:  # it goes on in the parent
        line.send(("error", _portable(error, target=target)))


def _portable(error: Exception, *, target: str) -> Exception:
    """Returns an exception that the parent can read without the modules of this process."""
    trace = "".join(traceback.format_exception(error))
    if outages.is_outage(error):
        portable = outages.recoverable(error)
    elif type(error).__module__ == "builtins" or isinstance(error, errors.UserError | errors.IntegrityError):
        portable = error
    else:
        portable = RuntimeError(f"{target}: {type(error).__name__}: {error}")
    portable.add_note(f"in the data worker:\n{trace}")
    portable.__cause__ = portable.__context__ = None
    return portable


if __name__ == "__main__":
    # Run as a script this file is not the module that others import; that one has to serve.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _served = importlib.import_module(_MODULE)
        _served.serve(Connection(int(sys.argv[1])), parent=int(sys.argv[2]), preload=sys.argv[3])
