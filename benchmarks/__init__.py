"""Measurements that are too long for tests; `make benchmark-data` runs them."""
