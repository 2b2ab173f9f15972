"""Simulation: the engine's own scheduling code on devices whose steps only cost time."""
