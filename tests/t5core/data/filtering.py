"""A user's module of filters: what a task's `function` may name."""


def is_even(text):
    return int(text.split()[1]) % 2 == 0


def all_are_even(**columns):
    return all(map(is_even, columns.values()))


def of_others(text, label, weight=1):
    return text != label * weight
