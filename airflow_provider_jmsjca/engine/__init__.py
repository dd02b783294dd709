"""Drivers: what the pure core decides, carried out over any transport."""
