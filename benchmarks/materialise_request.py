"""Materialises the task of a request given as JSON; a process of its own, timed from its start to its end."""

import sys

from t5core.config.edges import TaskRequest
from t5core.data.materialise import materialise_task

if __name__ == "__main__":
    materialise_task(TaskRequest.model_validate_json(sys.argv[1]))
