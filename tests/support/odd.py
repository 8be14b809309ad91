"""Structures with one thing in them that does not belong there: what a bug, or somebody's hand, leaves in a file."""

ODD = (
    None, True, False, -1, 0, 1, 7, 1 << 40, (1 << 64) - 1, 1.5, "", "n", "text", "\ud800", b"", b"\xc1", b"\0" * 16, [], {}, [[]],
)  # fmt: skip


def odd(dice, value):
    """The same with one thing in it replaced, left out, doubled or put elsewhere."""
    if isinstance(value, list) and value and dice.random() < 0.85:
        value = list(value)
        at = dice.randrange(len(value))
        what = dice.random()
        if what < 0.6:
            value[at] = odd(dice, value[at])
        elif what < 0.75:
            del value[at]
        elif what < 0.85:
            value.insert(at, value[at])
        else:
            other = dice.randrange(len(value))
            value[at], value[other] = value[other], value[at]
        return value
    if isinstance(value, dict) and value and dice.random() < 0.7:
        key = dice.choice(list(value))
        return {**value, key: odd(dice, value[key])}
    if isinstance(value, int) and not isinstance(value, bool) and dice.random() < 0.5:
        other = value + dice.choice([-1, 1, 100, -100])
        return max(-(1 << 63), min(other, (1 << 64) - 1))
    if isinstance(value, bytes) and value and dice.random() < 0.5:
        at = dice.randrange(len(value))
        flipped = bytearray(value)
        flipped[at] ^= 1
        return dice.choice([value[:at], bytes(flipped), value + b"\0"])
    return dice.choice(ODD)
