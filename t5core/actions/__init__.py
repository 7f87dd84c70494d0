"""Actions: what looks at a run's metrics and may stop it, or keep its checkpoints."""
