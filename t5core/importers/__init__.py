"""Checkpoints of T5X and of Hugging Face: read into this project's own, and written from them."""
