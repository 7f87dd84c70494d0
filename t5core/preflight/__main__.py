"""`python -m t5core.preflight`: looks at a run without starting it, and leaves with 1 when it cannot work."""

from __future__ import annotations

from collections.abc import Sequence

from t5core import command_line, errors, progress
from t5core.config import load, yaml_text
from t5core.config.schema import PretrainConfig

_EPILOG = "Nothing is written, apart from compiled programs that the run will find again."


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the preflight of the run that the arguments describe; returns 1 when it cannot work.

    Raises:
      ConfigError: a setting that cannot work.
      RunDirectoryError: the directory is another run's.
    """
    given = _parser().parse_args(arguments)
    config = load.load(given.config, PretrainConfig, _as_list(given.overrides))

    from t5core.preflight import examine, lines, pools  # JAX, once the settings are known to be right
    from t5core.report import plain
    from t5core.stages import resolve

    run = resolve.settle(config, ())
    devices = pools.POOLS[config.cluster.pool] if given.cluster else pools.this_machine()
    found = examine.examine(run, devices=devices, takes_steps=not (given.cluster or given.no_steps))
    progress.say(f"preflight of run {run.config.run.name}: {lines.headline(found)}")
    for line in plain.labelled(lines.lines_of(found)):
        progress.say(line)
    return 1 if found.refusals else 0


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="python -m t5core.preflight", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file with the settings of the run")
    parser.add_argument(
        "--overrides", default="[]", metavar="JSON", help='settings put over it: a JSON list of "section.key=value"'
    )
    parser.add_argument(
        "--cluster", action="store_true", help="judge by the devices of cluster.pool, not of this machine"
    )
    parser.add_argument("--no-steps", action="store_true", help="do not try real steps (compiling takes the most time)")
    return parser


def _as_list(text: str) -> list[str]:
    overrides = yaml_text.parse(text, origin="--overrides")
    if not isinstance(overrides, list) or not all(isinstance(override, str) for override in overrides):
        raise errors.ConfigError(f'--overrides {text!r} is not a list; write ["section.key=value"]')
    return overrides


if __name__ == "__main__":
    command_line.run(main)
