"""Owns how the device model is tested: on a card where there is one, else in Triton's interpreter."""

from __future__ import annotations

from tests.builders.interpreter import prepare

prepare(look_for_overflows=False)
