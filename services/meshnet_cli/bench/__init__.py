"""Measurements, each beside the raw limit that was measured in the same run."""
