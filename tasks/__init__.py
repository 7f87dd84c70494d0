"""Typed Flyte tasks, one for each stage; each wraps one call of t5core."""

import logging

# Fields such as `dict[str, Any]` make flytekit warn of pickles. They travel as JSON inside of their models.
logging.getLogger("flytekit").addFilter(lambda record: "PickleFile" not in record.getMessage())
