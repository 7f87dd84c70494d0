import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5core.checkpoints import msgpack_structure

EXTENSIONS = (1, 2, 3)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS | st.binary(max_size=300).map(lambda content: msgpack.ExtType(1, msgpack.packb(content))),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
)


@given(VALUES)
def test_whatever_is_packed_passes(value):
    msgpack_structure.check(msgpack.packb(value), extensions=EXTENSIONS)


@given(VALUES, st.data())
def test_whatever_is_cut_short_or_continued_does_not(value, data):
    packed = msgpack.packb(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    for content in (packed[:cut], packed + b"\xc0"):
        with pytest.raises(ValueError, match=r"announced|behind its end"):
            msgpack_structure.check(content, extensions=EXTENSIONS)


@given(st.binary(max_size=40))
def test_what_passes_can_be_decoded(content):
    try:
        msgpack_structure.check(content, extensions=EXTENSIONS)
    except ValueError:
        return
    with contextlib.suppress(TypeError):  # a list as a key, which no dict can have
        msgpack.unpackb(content, strict_map_key=False, raw=True)


BOMBS = {
    "a long list": (b"\xdd\xff\xff\xff\xff", "4294967295 values are announced at byte 5"),
    "a long map": (b"\xdf\xff\xff\xff\xff", "8589934590 values are announced at byte 5"),
    "long lists in long lists": (b"\xdd\x00\x00\x00\x30" * 11, "48 values are announced at byte"),
    "many levels": (b"\x91" * 100_000 + b"\xc0", "nested deeper than 64 levels"),
    "long bytes": (b"\xc6\xff\xff\xff\xff", "4294967295 bytes are announced at byte 5, 0 are left"),
    "long text": (b"\xdb\x00\x00\x00\x09abc", "9 bytes are announced at byte 5, 3 are left"),
    "an unknown extension": (msgpack.packb(msgpack.ExtType(42, b"1234")), "extension 42 at byte 1 is not an array"),
    "a timestamp": (b"\xd6\xff1234", "extension -1 at byte 1 is not an array"),
    "a bomb in an extension": (
        msgpack.packb(msgpack.ExtType(1, b"\xdd\xff\xff\xff\xff")),
        "4294967295 values are announced at byte 5",
    ),
    "levels in extensions": (b"", "nested deeper than 64 levels"),
    "nothing of the kind": (b"\xc1", "byte 0 is 0xc1, which begins nothing"),
}


def nested_extensions():
    content = b"\xc0"
    for _ in range(80):
        content = msgpack.packb([msgpack.ExtType(1, content)])
    return content


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_seen_before_they_are_decoded(name):
    content, message = BOMBS[name]
    with pytest.raises(ValueError, match=message):
        msgpack_structure.check(content or nested_extensions(), extensions=EXTENSIONS)
