"""The structure of a msgpack file, looked through before anything of it is decoded.

A decoder makes room for as many elements as a header announces, header within header: a short file can ask for all
the memory there is. Here nothing is made; every announcement is compared with the bytes that are left.

Source of the format: github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_DEPTH = 64
# First byte -> bytes of the number itself.
_NUMBERS = {0xCA: 4, 0xCB: 8} | {0xCC + power: 1 << power for power in range(4)}
_NUMBERS |= {0xD0 + power: 1 << power for power in range(4)}
# First byte -> bytes of the length that follows.
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4 + power: 1 << power for power in range(5)}
_ARRAYS, _MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}
_PLAIN = (0xC0, 0xC2, 0xC3)  # nil, false, true


class _Scanner:
    def __init__(self, content: memoryview, extensions: Collection[int]) -> None:
        self._content, self._at, self._extensions = content, 0, extensions

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def take(self, size: int) -> memoryview:
        if size > len(self._content) - self._at:
            raise ValueError(f"{size} bytes are announced at byte {self._at}, {len(self._content) - self._at} are left")
        self._at += size
        return self._content[self._at - size : self._at]

    def scan(self, depth: int) -> None:
        """Goes through everything; the file is one value.

        Raises:
          ValueError: an announcement that cannot be kept, too many levels, an unknown kind, or bytes behind the end.
        """
        open_levels = [1]  # values that are still to come, by level
        while open_levels:
            if open_levels[-1] == 0:
                open_levels.pop()
                continue
            open_levels[-1] -= 1
            inner = self._value(depth + len(open_levels))
            if inner:
                open_levels.append(inner)
                if depth + len(open_levels) > MAX_DEPTH:
                    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
                if sum(open_levels) > len(self._content) - self._at:
                    raise ValueError(f"{inner} values are announced at byte {self._at}, more than there are bytes left")
        if self._at != len(self._content):
            raise ValueError(f"{len(self._content) - self._at} bytes behind its end")

    def _value(self, depth: int) -> int:
        """Goes over one value without what it contains; returns the number of values that it contains."""
        kind = self.number(1)
        if kind <= 0x7F or kind >= 0xE0 or kind in _PLAIN:
            return 0
        if kind <= 0x8F:
            return 2 * (kind & 0x0F)
        if kind <= 0x9F:
            return kind & 0x0F
        if kind in _MAPS:
            return 2 * self.number(_MAPS[kind])
        if kind in _ARRAYS:
            return self.number(_ARRAYS[kind])
        if kind in _EXTENSIONS or kind in _FIXED_EXTENSIONS:
            self._extension(_FIXED_EXTENSIONS.get(kind) or self.number(_EXTENSIONS[kind]), depth)
        elif kind <= 0xBF:
            self.take(kind & 0x1F)
        elif kind in _BYTES:
            self.take(self.number(_BYTES[kind]))
        elif kind in _NUMBERS:
            self.take(_NUMBERS[kind])
        else:
            raise ValueError(f"byte {self._at - 1} is {kind:#04x}, which begins nothing")
        return 0

    def _extension(self, size: int, depth: int) -> None:
        code = self.number(1)
        if code not in self._extensions:
            raise ValueError(f"extension {code if code < 128 else code - 256} at byte {self._at - 1} is not an array")
        _Scanner(self.take(size), self._extensions).scan(depth)


def check(content: bytes, *, extensions: Collection[int]) -> None:
    """Returns when decoding `content` cannot take much more memory than it has bytes.

    Args:
      content: a msgpack file.
      extensions: the codes that may occur, each holding msgpack itself.

    Raises:
      ValueError: something is announced that is not there, nested too deeply, or of a kind that may not occur.
    """
    _Scanner(memoryview(content), extensions).scan(0)
