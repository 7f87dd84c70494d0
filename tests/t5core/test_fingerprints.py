import importlib
import sys
import textwrap

import pytest

from t5core import errors, fingerprints

SOURCE = '''
"""What the module is for."""

SCALE = 3


def scaled(value):
    """Returns value times three."""
    # a reason
    return value * SCALE
'''


def fingerprint(source):
    return fingerprints.source_fingerprint(textwrap.dedent(source))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a reason", "# another reason"),
        ("    # a reason\n", ""),
        ('    """Returns value times three."""\n', ""),
        ("What the module is for.", "Something else."),
        ("return value * SCALE", "return (value *\n        SCALE)"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(old, new):
    assert old in SOURCE
    assert fingerprint(SOURCE.replace(old, new)) == fingerprint(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("SCALE = 3", "SCALE = 4"), ("value * SCALE", "value + SCALE"), ("def scaled(value)", "def scaled(value=1)")],
)
def test_anything_that_runs_counts(old, new):
    assert old in SOURCE
    assert fingerprint(SOURCE.replace(old, new)) != fingerprint(SOURCE)


def test_a_string_that_is_used_is_not_a_docstring():
    assert fingerprint("def f():\n    return 'a'\n") != fingerprint("def f():\n    return 'b'\n")


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "probe_package").mkdir()
    (tmp_path / "probe_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "probe_package"
    for name in [name for name in sys.modules if name.startswith("probe_package")]:
        del sys.modules[name]


def test_modules_are_read_but_not_run(package):
    (package / "explosive.py").write_text("raise RuntimeError('imported')\n")
    before = fingerprints.code_fingerprint("probe_package.explosive")
    (package / "explosive.py").write_text("raise RuntimeError('imported')  # why\n")
    assert fingerprints.code_fingerprint("probe_package.explosive") == before
    (package / "explosive.py").write_text("raise RuntimeError('read')\n")
    assert fingerprints.code_fingerprint("probe_package.explosive") != before


def test_order_does_not_count_but_names_do(package):
    (package / "one.py").write_text("A = 1\n")
    (package / "two.py").write_text("A = 2\n")
    both = fingerprints.code_fingerprint("probe_package.one", "probe_package.two")
    assert fingerprints.code_fingerprint("probe_package.two", "probe_package.one") == both
    (package / "one.py").write_text("A = 2\n")
    (package / "two.py").write_text("A = 1\n")
    assert fingerprints.code_fingerprint("probe_package.one", "probe_package.two") != both


def test_a_module_object_and_its_name_are_the_same():
    assert fingerprints.code_fingerprint(fingerprints) == fingerprints.code_fingerprint("t5core.fingerprints")


@pytest.mark.parametrize("name", ["t5core.no_such_module", "no_such_package.at_all", "math"])
def test_a_module_without_source_is_refused(name):
    with pytest.raises(errors.ConfigError) as caught:
        fingerprints.code_fingerprint(name)
    assert str(caught.value) == f"module {name!r} has no Python source to fingerprint; name one that is a .py file"


@pytest.fixture
def functions(package, monkeypatch):
    """Returns the fingerprint of what `probe_package.users` calls `found`, after writing the modules anew."""
    sources = {
        "shared": "def scaled(value, by=2):\n    return value * by\n",
        "wrapping": "import functools\n\ndef loud(f):\n    return functools.wraps(f)(lambda *a: print() or f(*a))\n",
        "users": "import functools\nfrom probe_package import shared, wrapping\n\nfound = shared.scaled\n",
    }

    def fingerprint(**changes):
        for name, source in {**sources, **changes}.items():
            (package / f"{name}.py").write_text(source)
        for name in [name for name in sys.modules if name.startswith("probe_package")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one second and one size are told apart by it
        found = importlib.import_module("probe_package.users").found
        return fingerprints.functions_fingerprint([found], told=("functools",))

    fingerprint.sources = sources
    return fingerprint


def test_a_function_is_told_by_the_code_of_its_module(functions):
    scaled = functions.sources["shared"]
    before = functions()
    assert functions(shared=f"# why\n{scaled}") == before
    assert functions(users=functions.sources["users"] + "other = 1\n") == before, "it comes from elsewhere"
    assert functions(shared=scaled.replace("*", "+")) != before


def test_what_is_bound_to_a_function_and_what_wraps_it_count(functions):
    head = "import functools\nfrom probe_package import shared, wrapping\n\n"
    bound = {by: f"{head}found = functools.partial(shared.scaled, by={by})\n" for by in (3, 4)}
    assert len({functions(), functions(users=bound[3]), functions(users=bound[4])}) == 3
    wrapped = f"{head}found = wrapping.loud(shared.scaled)\n"
    before = functions(users=wrapped)
    for name, old, new in (("shared", "*", "+"), ("wrapping", "print()", "id(f)")):
        changed = {name: functions.sources[name].replace(f" {old} ", f" {new} ")}
        assert functions(users=wrapped, **changed) != before


def test_what_is_told_by_its_version_is_not_read():
    assert fingerprints.functions_fingerprint([pytest.approx], told=("_pytest",)) == (
        fingerprints.functions_fingerprint([pytest.approx], told=("_pytest", "json"))
    )
    assert fingerprints.functions_fingerprint([pytest.approx]) != (
        fingerprints.functions_fingerprint([pytest.approx], told=("_pytest",))
    )


def test_library_versions_are_those_installed():
    assert fingerprints.library_versions("pydantic").startswith("pydantic==2.")
