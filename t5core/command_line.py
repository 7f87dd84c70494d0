"""What the project's own commands have in common: one line for a mistake, and a reader that may leave early."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from t5core import errors

EX_TEMPFAIL = 75


class Parser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Prints `message` and leaves with 2, as commands do for wrong arguments."""
        fail(f"{message}; see {self.prog} --help", code=2)


def run(command: Callable[[], int | None]) -> NoReturn:
    """Runs `command` and leaves with the code that it returns (None: 0).

    A user's mistake is printed as one line and leaves with 1, what another attempt may survive with 75. A reader that
    closes the pipe, as `head` does, ends the command without a word.
    """
    try:
        code = command() or 0
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        code = 0
    except errors.RecoverableError as error:
        fail(str(error), code=EX_TEMPFAIL)
    except (errors.UserError, errors.IntegrityError) as error:
        fail(str(error), code=1)
    sys.exit(code)


def fail(message: str, *, code: int) -> NoReturn:
    """Prints a mistake as one line on stderr and leaves with `code`."""
    sys.stderr.write(f"Error: {message.strip()}\n")
    sys.exit(code)
