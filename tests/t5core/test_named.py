"""Look-ups of functions by name, for every setting that takes one."""

import json

import pytest

from t5core import errors, named


def test_a_name_leads_to_whatever_it_names():
    assert named.given("json.dumps") is json.dumps
    assert named.given("json.decoder.JSONDecoder") is json.JSONDecoder
    assert named.target("json:dumps") is json.dumps


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dumps", "{} is no dotted name; give module.function"),
        (".dumps", "{} cannot be imported: Empty module name; give module.function, importable where the run is"),
        ("no_such.f", "{} cannot be imported: No module named 'no_such'; give module.function, importable where"),
        ("json.dupms", "{}: unknown name in json 'dupms'; did you mean 'dumps'? known: JSONDecode"),
    ],
)
def test_what_cannot_be_found_is_one_line_that_names_the_setting(name, message):
    for told, expected in (("", repr(name)), ("metric 'm'", "metric 'm'")):
        with pytest.raises(errors.ConfigError) as caught:
            named.given(name, told=told)
        assert str(caught.value).startswith(message.format(expected))
        assert "\n" not in str(caught.value)
