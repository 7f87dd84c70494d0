"""Reads a Dockerfile, and does on this machine what it does to files."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import shutil


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One step of a build, its lines joined."""

    name: str
    argument: str

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a RUN."""
        return [shlex.split(command) for command in self.argument.split("&&")]


def read(file: pathlib.Path) -> list[Instruction]:
    """Returns the instructions of a Dockerfile in their order."""
    kept = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(kept).replace("\\\n", " ").splitlines()
    split = [line.strip().partition(" ") for line in joined if line.strip()]
    return [Instruction(name=name, argument=argument.strip()) for name, _, argument in split]


def variables(instructions: list[Instruction]) -> dict[str, str]:
    """Returns what ENV sets."""
    words = [word for step in instructions if step.name == "ENV" for word in shlex.split(step.argument)]
    return dict(word.split("=", 1) for word in words)


def install_command(instructions: list[Instruction]) -> list[str]:
    """Returns the words of the command that installs the packages."""
    commands = [command for step in instructions if step.name == "RUN" for command in step.commands]
    (install,) = [command for command in commands if command[:3] == ["uv", "pip", "install"]]
    return install


def copy_until_install(instructions: list[Instruction], *, root: pathlib.Path, folder: pathlib.Path) -> None:
    """Brings into `folder` what the build has there when it installs: copies from `root`, and folders it makes."""
    for step in instructions:
        if step.name == "COPY":
            *sources, target = shlex.split(step.argument)
            assert target == "./", f"{target} is copied before the packages are installed"
            for source in sources:
                shutil.copy(root / source, folder)
        for command in step.commands if step.name == "RUN" else ():
            if command[0] == "mkdir":
                for name in command[1:]:
                    (folder / name).mkdir()
            elif command[0] == "touch":
                for name in command[1:]:
                    (folder / name).touch()
            elif command[:3] == ["uv", "pip", "install"]:
                return
