"""`tersify reproduce`"""


def reproduce() -> None:
    """x"""
