"""Owns how the screens look: places and marks; colours are the terminal's, and none of them means anything."""

from __future__ import annotations

CSS = """
Screen { layout: vertical; }
#title { height: 1; text-style: bold reverse; padding: 0 1; }
#body { height: 1fr; padding: 0 1; }
#help { height: auto; max-height: 3; padding: 0 1; text-style: italic; border-top: ascii $foreground; }
#plan { height: auto; max-height: 40%; padding: 0 1; border-top: ascii $foreground; }
#change { height: auto; }
.row { height: 1; }
.row Label { width: 24; }
.row Input { width: 1fr; }
.caption { height: auto; margin-top: 1; }
Choice { height: auto; max-height: 12; border: none; padding: 0; background: $background; }
Choice:focus { border: none; }
Boundary { height: auto; }
Boundary:focus { text-style: reverse; }
Button { margin-top: 1; }
Button:focus { text-style: bold reverse; }
#small { height: 1fr; content-align: center middle; }
"""
