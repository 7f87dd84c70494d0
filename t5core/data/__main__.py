"""`python -m t5core.data inspect URI`: shows what a dataset, or the mixture of a run, holds."""

from __future__ import annotations

from collections.abc import Sequence

from t5core import command_line, errors, progress
from t5core.data import inspection, vocabulary_lookup


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the manifest and some rows of the dataset that the arguments name.

    Raises:
      DataError: there is none, or nothing of what is asked for in it.
      IntegrityError: it is damaged.
    """
    given = _parser().parse_args(arguments)
    if given.rows < 0:
        raise errors.DataError(f"--rows {given.rows} is negative; give 0 for the manifest alone")
    uri = inspection.dataset_of(given.uri, task=given.task)
    for line in inspection.manifest_lines(uri):
        progress.say(line)
    if not given.rows:
        return
    selection = inspection.Selection(split=given.split, start=given.start, rows=given.rows, with_ids=given.ids)
    vocabulary = vocabulary_lookup.vocabulary_of(uri, path=given.vocabulary)
    for line in inspection.row_lines(uri, selection, vocabulary):
        progress.say(line)


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="python -m t5core.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="rows as text, the manifest as tables")
    inspect.add_argument("uri", metavar="URI", help="a dataset, or a run directory for what it trains on")
    inspect.add_argument("--task", metavar="NAME", help="of a run: the dataset of this task, not the mixture")
    inspect.add_argument("--split", default="train", help="of the dataset (default: train)")
    inspect.add_argument("--start", type=int, default=0, metavar="K", help="first row to show (default: 0)")
    inspect.add_argument("--rows", type=int, default=3, metavar="N", help="rows to show (default: 3; 0: none)")
    inspect.add_argument("--ids", action="store_true", help="show token ids below the text")
    inspect.add_argument("--vocabulary", metavar="FILE", help="SentencePiece model, if it is not beside the dataset")
    return parser


if __name__ == "__main__":
    command_line.run(main)
