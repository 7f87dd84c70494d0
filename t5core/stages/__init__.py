"""The stages of a run, one function each: what a task calls, idempotent from the run directory."""
