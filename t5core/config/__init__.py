"""Configuration: what a run may be told, how it is read, and what travels between its stages."""
