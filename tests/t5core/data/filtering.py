"""A user's module of filters: what a task's `function` may name."""


def is_even(columns):
    return int(columns["text"].split()[1]) % 2 == 0
