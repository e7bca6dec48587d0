"""
Values that JSON has no form for, kept by their annotation and brought back by it.

What comes back equals what was passed, or it is refused when it is passed.

    base          a converter, its two halves, and its errors
    builder       from an annotation to its converter; unions, aliases
    scalars       single values
    collections   lists, sets, tuples, dictionaries
    records       dataclasses, named tuples, typed dictionaries
    models        of pydantic and msgspec
"""

from .base import PLAIN, Converter, Half, Mismatch, UnsupportedAnnotation, shown, shown_annotation
from .builder import converter, dump_by_type

__all__ = [
    "PLAIN",
    "Converter",
    "Half",
    "Mismatch",
    "UnsupportedAnnotation",
    "converter",
    "dump_by_type",
    "shown",
    "shown_annotation",
]
