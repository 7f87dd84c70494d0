"""The T5X training system on today's JAX: everything that works, and nothing that knows about Flyte."""
