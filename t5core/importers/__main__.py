"""Checkpoints in and out from the shell.

python -m t5core.importers import SOURCE DEST      somebody else's checkpoint -> ours, DEST/<step>
python -m t5core.importers export SOURCE DEST --format huggingface
python -m t5core.importers inspect SOURCE
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from t5core import command_line, errors, progress
from t5core.config import load
from t5core.config.convert_schema import ConvertConfig


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(prog="python -m t5core.importers", description="Checkpoints in and out.")
    commands = parser.add_subparsers(dest="command", required=True)
    reads = commands.add_parser("import", help="read a checkpoint of T5X or Hugging Face into one of ours")
    writes = commands.add_parser("export", help="write a checkpoint for T5X or Hugging Face")
    looks = commands.add_parser("inspect", help="say what a checkpoint is and holds; nothing is written")
    for command in (reads, writes, looks):
        command.add_argument("source", metavar="SOURCE", help="folder of a checkpoint, a run, or gs:// the same")
        command.add_argument("--model", metavar="FILE", help="YAML with a section 'model' that the source has to match")
        command.add_argument("--optimizer-state", choices=("keep", "drop"), default="keep")
    for command in (reads, looks):
        command.add_argument("--format", choices=("auto", "t5flow", "t5x", "huggingface"), default="auto")
        command.add_argument("--step", type=int, help="of a Hugging Face model, which has none (default 0)")
    for command in (reads, writes):
        command.add_argument("destination", metavar="DEST", help="folder; the report goes to DEST/conversion")
    writes.add_argument("--format", choices=("t5x", "huggingface"), required=True)
    writes.add_argument("--layout", choices=("unscanned", "scanned"), default="unscanned", help="of a T5X checkpoint")
    writes.add_argument("--max-shard-bytes", type=int, help="largest file of a Hugging Face model (default 2 GiB)")
    return parser


def _config(arguments: argparse.Namespace) -> ConvertConfig:
    source: dict[str, Any] = {"uri": arguments.source, "optimizer_state": arguments.optimizer_state}
    if arguments.model is not None:
        settings = load.read_file(arguments.model)
        if "model" not in settings:
            raise errors.ConfigError(f"{arguments.model} has no section 'model'; give the config of a run")
        source["model"] = settings["model"]
    destination: dict[str, Any] = {"format": "t5flow"}
    if arguments.command == "export":
        destination = {
            "format": arguments.format,
            "layout": arguments.layout,
            "max_shard_bytes": arguments.max_shard_bytes,
        }
    else:
        source |= {"format": arguments.format, "step": arguments.step}
    if arguments.command != "inspect":
        destination["uri"] = arguments.destination
    return load.validate({"source": source, "destination": destination}, ConvertConfig, origin="arguments")


def _inspect(config: ConvertConfig) -> None:
    from t5core.importers import formats

    ref = formats.survey(config.source)
    found = formats.read(ref, config.source)
    progress.say(f"{ref.uri}: {ref.format}, step {found.step}, {ref.size_bytes / 1e6:.1f} MB, digest {ref.digest}")
    for name, value in found.architecture.model_dump().items():
        progress.say(f"  {name} {value}")
    for note in (*found.notes, *(f"unused: {tensor}" for tensor in found.unused)):
        progress.say(f"  {note}")
    for tensor in found.mapping:
        progress.say(f"  {tensor.source} -> {tensor.name} {tensor.dtype}{tensor.shape}, {tensor.how}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Imports, exports or inspects, as the arguments say.

    Raises:
      UserError: there is no such checkpoint, or it cannot be what was asked for.
      IntegrityError: it is damaged.
    """
    parsed = _parser().parse_args(arguments)
    config = _config(parsed)
    if parsed.command == "inspect":
        _inspect(config)
        return
    from t5core.stages import convert

    plan = convert.inspect(config, [], uri=f"{parsed.destination.rstrip('/')}/conversion")
    convert.compare(convert.convert(plan))


if __name__ == "__main__":
    command_line.run(main)
