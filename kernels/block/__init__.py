"""Whole blocks of a layer as one compiled call each, so that threads seldom meet at the interpreter's lock."""
