"""Where a run starts: its own last checkpoint, another run's, or its seed."""
