"""Populations: agents that differ only in their seeds, trained together on one device."""
