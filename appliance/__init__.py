"""Strata Appliance: serves one large mixture-of-experts model to a small office."""

__version__ = "0.1.0"
