"""Who imports whom, and what an import costs: asked in fresh processes."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = ("jax", "tensorflow", "orbax", "flax", "seqio", "matplotlib")


def heavy_after(statement: str) -> set[str]:
    """Returns which heavy packages are loaded once `statement` has run in a fresh interpreter."""
    code = f"import sys, json\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def modules(package: str) -> list[str]:
    paths = (ROOT / package).rglob("*.py")
    return sorted(".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in paths)


def test_workflows_and_tasks_load_no_heavy_package():
    statement = "\n".join(f"import {name}" for name in [*modules("workflows"), *modules("tasks")])
    assert heavy_after(statement) == set()


def test_what_starts_a_run_is_light():
    light = ("config.load", "config.edges", "schedule", "errors", "storage", "rundir", "lock", "checkpoints.index")
    assert heavy_after("\n".join(f"import t5core.{name}" for name in light)) == set()


def test_a_training_segment_loads_no_tensorflow():
    names = [name for name in modules("t5core") if not name.rpartition(".")[2].startswith("seqio_")]
    names = [name for name in names if name not in ("t5core.data.preprocessors", "t5core.data.__main__")]
    loaded = heavy_after("\n".join(f"import {name}" for name in names))
    assert "jax" in loaded, "the list of modules is wrong if it trains without JAX"
    assert not loaded & {"tensorflow", "seqio"}


def test_the_probe_sees_a_heavy_import():
    assert heavy_after("import jax") == {"jax"}


def test_import_contracts_hold():
    lint = pathlib.Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("t5core", ("flytekit", "tasks", "workflows")),
        ("tasks", ("workflows",)),
        ("workflows", ("numpy", "jax", "seqio")),
    ],
)
def test_no_source_names_what_its_layer_may_not_import(package, forbidden):
    """Sees imports inside functions as well, which run late but count the same."""
    for path in (ROOT / package).rglob("*.py"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        imports = [line for line in lines if line.startswith(("import ", "from "))]
        named = {line.split()[1].split(".")[0] for line in imports}
        assert not named & set(forbidden), f"{path} imports {named & set(forbidden)}"
