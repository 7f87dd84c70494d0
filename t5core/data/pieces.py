"""Files cut into pieces that can be read each by itself, so that many processes can share the work.

Where a file is cut depends on its content alone, so that the pieces are the same whoever reads them.
"""

from __future__ import annotations

import os

from t5core.data import files
from t5core.data.files import Piece

# A piece is about as long, and a file is cut into so many at most.
PIECE_BYTES = 2 << 20
_MOST_PIECES = 1 << 16


def pieces(file: str, *, size: int | None = None) -> tuple[Piece, ...]:
    """Returns the parts of `file`, in order; where it is cut depends on its content alone.

    Lines are whole in them. A record of a .csv file may hold line feeds, so such a file is one piece.

    Args:
      file: to cut.
      size: bytes of a piece, about; None for what suits the file.
    """
    ending = files.suffix(file)
    if ending == ".parquet":
        return _row_groups(file, size)
    found = _line_ranges(file, size)
    return found if ending != ".csv" else (Piece(file, lines=sum(piece.lines for piece in found)),)


def _line_ranges(file: str, size: int | None) -> tuple[Piece, ...]:
    found, begin, first = [], 0, 1
    with files.opened(file) as handle:
        total = handle.seek(0, os.SEEK_END)
        handle.seek(0)
        size = size or max(PIECE_BYTES, total // _MOST_PIECES)
        while begin < total:
            lines, length = 0, 0
            while length < size and (block := handle.read(min(files.BLOCK, size - length))):
                lines += block.count(b"\n")
                length += len(block)
            rest = handle.readline()
            lines += 1  # it ends here, with a line feed or without
            end = begin + length + len(rest)
            found.append(Piece(file, begin, end, first, lines))
            begin, first = end, first + lines
    return tuple(found) or (Piece(file),)


def _row_groups(file: str, size: int | None) -> tuple[Piece, ...]:
    with files.parquet_file(file) as table:
        groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
    size = size or max(PIECE_BYTES, sum(group.total_byte_size for group in groups) // _MOST_PIECES)
    found, begin, first, bytes_, rows_ = [], 0, 1, 0, 0
    for number, group in enumerate(groups, start=1):
        bytes_, rows_ = bytes_ + group.total_byte_size, rows_ + group.num_rows
        if bytes_ >= size or number == len(groups):
            found.append(Piece(file, begin, number, first, rows_))
            begin, first, bytes_, rows_ = number, first + rows_, 0, 0
    return tuple(found) or (Piece(file),)
