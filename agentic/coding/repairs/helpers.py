"""Holds the helpers of made-up repositories: each says in its docstring what is right.

Their sources are data (functions.py): nothing here calls them, and they have no types.
"""

# mypy: ignore-errors


def clamp(value, low, high):
    """Return the value, but at least low and at most high."""
    return max(low, min(value, high))


def take_page(items, number, size):
    """Return page `number` of the items; pages count from 1."""
    start = (number - 1) * size
    return items[start : start + size]


def take_block(items, number, size):
    """Return block `number` of the items; blocks count from 0."""
    start = number * size
    return items[start : start + size]


def count_pages(items, size):
    """Return how many pages of that size the items need."""
    return (len(items) + size - 1) // size


def list_changes(values):
    """List each value minus the value before it."""
    return [after - before for before, after in zip(values, values[1:])]  # noqa: B905, RUF007


def sum_windows(values, size):
    """List the sums of all runs of that many values, from left to right."""
    return [sum(values[start : start + size]) for start in range(len(values) - size + 1)]


def run_totals(values):
    """List the sum up to each value, that value included."""
    total = 0
    totals = []
    for value in values:
        total += value
        totals.append(total)
    return totals


def rotate(items, places):
    """Move so many items from the front to the end."""
    return items[places:] + items[:places]


def take_top(values, count):
    """List the largest values, the largest first."""
    return sorted(values, reverse=True)[:count]


def shorten(text, length):
    """Cut the text to that length; a text that was cut ends in two dots."""
    if len(text) <= length:
        return text
    return text[: length - 2] + ".."


def take_off(price, percent):
    """Return the price less so many percent of it, in whole cents."""
    return price - price * percent // 100


def overlap(start, end, other_start, other_end):
    """Say whether two spans of days share one; an end is not part of its span."""
    return start < other_end and other_start < end


def is_within(value, low, high):
    """Say whether the value is at least low and below high."""
    return low <= value < high


def is_between(value, low, high):
    """Say whether the value is above low and at most high."""
    return low < value <= high


def count_down(count):
    """List the whole numbers from count down to 1."""
    return list(range(count, 0, -1))


def share_out(amount, people):
    """Return what each gets of the amount, and the rest."""
    return [amount // people, amount % people]


def middle(values):
    """Return the middle one of the sorted values; of two, the later one."""
    return sorted(values)[len(values) // 2]


def pad_left(text, width):
    """Fill the text with dots on the left up to the width."""
    return "." * (width - len(text)) + text
