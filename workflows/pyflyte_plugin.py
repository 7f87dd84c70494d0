"""What `pyflyte` does for this project beyond its own ways.

- `pyflyte run workflows/NAME.py` without an entity runs the workflow called NAME.
- `--config FILE` is read by our own loader, so that a mistake is one line with the nearest key.
- A user's mistake anywhere in a run prints one line instead of a traceback; a stop by SIGTERM exits with EX_TEMPFAIL.

Built on flytekit's private command classes; flytekit is pinned and a test starts each form.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from t5core import errors
from t5core.config import load
from t5core.config.base import StrictModel

if TYPE_CHECKING:
    from flytekit.remote import FlyteRemote

EX_TEMPFAIL = 75


def __getattr__(name: str) -> Any:
    """Makes the entry point `Plugin` when flytekit asks for it.

    flytekit loads its plugin at the end of the module that holds the base class: whichever of the two is imported
    first, the other one is only half there at that time.
    """
    if name != "Plugin":
        raise AttributeError(name)
    from flytekit.configuration.plugin import FlytekitPlugin

    methods = {"get_remote": staticmethod(get_remote), "configure_pyflyte_cli": staticmethod(configure_pyflyte_cli)}
    return type("Plugin", (FlytekitPlugin,), methods)


def get_remote(config: str | None, project: str, domain: str, data_upload_location: str | None = None) -> FlyteRemote:
    """Returns the remote of the `flyte.config` in the working directory, which flytekit itself does not read."""
    from flytekit.configuration.plugin import FlytekitPlugin

    if config is None and os.path.exists("flyte.config"):
        config = "flyte.config"
    return FlytekitPlugin.get_remote(config, project, domain, data_upload_location)


def configure_pyflyte_cli(main: click.Group) -> click.Group:
    """Puts our argument handling and error lines into pyflyte's commands."""
    from flytekit.clis.sdk_in_container import run, utils

    _default_entity(run.WorkflowCommand)
    _config_files(run.YamlFileReadingCommand)
    _one_line_errors(utils)
    return main


def _default_entity(command: Any) -> None:
    original = command.parse_args

    def parse_args(self: Any, ctx: click.Context, args: list[str]) -> list[str]:
        name = pathlib.Path(self._filename).stem
        if name in self.list_commands(ctx) and (not args or args[0].startswith("-")):
            args = [name, *args]
        return original(self, ctx, args)

    command.parse_args = parse_args


def _config_files(command: Any) -> None:
    original = command.parse_args
    original_init = command.__init__

    def __init__(self: Any, name: str, params: list[click.Option], *args: Any, **settings: Any) -> None:
        for option in params:
            _readable(option)
        original_init(self, name, params, *args, **settings)

    def parse_args(self: Any, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return original(self, ctx, _inline_config(args, _config_model(self)))
        except errors.UserError as error:
            fail(error)

    command.__init__ = __init__
    command.parse_args = parse_args


def _readable(option: click.Option) -> None:
    """Takes the JSON schema and the default's full text out of an option's help."""
    if option.name == "config":
        option.help = (option.help or "").split(": {", 1)[0]
        option.show_default = False
        option.metavar = "FILE"


def _config_model(command: click.Command) -> type[StrictModel] | None:
    """Returns the model that a workflow takes as `config`, or None when it takes none of ours."""
    for option in command.params:
        model = getattr(option.type, "_python_type", None)
        if option.name == "config" and isinstance(model, type) and issubclass(model, StrictModel):
            return model
    return None


def _inline_config(args: list[str], model: type[StrictModel] | None) -> list[str]:
    """Replaces the path after `--config` by the validated settings as JSON."""
    if model is None:
        return args
    overrides = _overrides(args)
    inlined: list[str] = []
    for index, arg in enumerate(args):
        name, separator, value = arg.partition("=")
        if name == "--config" and separator:
            inlined.append(f"--config={_as_json(value, model, overrides)}")
        elif index and args[index - 1] == "--config":
            inlined.append(_as_json(arg, model, overrides))
        else:
            inlined.append(arg)
    return inlined


def _overrides(args: list[str]) -> list[str]:
    """Returns what `--overrides` puts over the settings; nothing where it names a file, which flytekit reads.

    Raises:
      ConfigError: it is no list of texts.
    """
    given = [arg.removeprefix("--overrides=") for arg in args if arg.startswith("--overrides=")]
    given += [after for arg, after in itertools.pairwise(args) if arg == "--overrides"]
    if not given or os.path.isfile(given[-1]):
        return []
    try:
        overrides = json.loads(given[-1])
    except ValueError:
        overrides = None
    if not isinstance(overrides, list) or not all(isinstance(override, str) for override in overrides):
        raise errors.ConfigError(
            f"--overrides takes a JSON list of settings, such as '[\"train.total_steps=40\"]', not {given[-1]}"
        )
    return overrides


def _as_json(value: str, model: type[StrictModel], overrides: list[str]) -> str:
    """Returns the settings in a file, or in `value` itself, with `overrides` in them if they are wrong without."""
    given = value.lstrip().startswith("{")
    origin = "--config" if given else value
    settings = load.yaml_text.parse(value, origin=origin) if given else load.read_file(value)
    return json.dumps(load.validate_mended(settings, model, overrides, origin=origin).model_dump(mode="json"))


def _one_line_errors(utils: Any) -> None:
    original = utils.pretty_print_exception

    def pretty_print_exception(error: Exception, verbosity: int = 1) -> None:
        mistake = _cause(error)
        if mistake is None or verbosity > 0:
            original(error, verbosity)
        else:
            fail(mistake)

    utils.pretty_print_exception = pretty_print_exception


def _cause(error: BaseException | None) -> Exception | None:
    """Returns the first of our own errors in the chain of causes."""
    while error is not None:
        if isinstance(error, errors.UserError | errors.IntegrityError | errors.RecoverableError):
            return error
        error = error.__cause__ or error.__context__
    return None


def fail(error: Exception) -> NoReturn:
    """Prints the mistake as one line on stderr and exits: 75 when trying again helps, 1 otherwise."""
    # flytekit puts "Error encountered while executing ..." and a line break before the message of a task's exception.
    message = str(error).strip().splitlines()[-1].strip()
    click.secho(f"Error: {message}", fg="red", err=True)
    sys.exit(EX_TEMPFAIL if isinstance(error, errors.RecoverableError) else 1)
