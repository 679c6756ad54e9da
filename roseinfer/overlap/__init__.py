"""Who computes a step while the host is free for the next one: devices that take work in order."""

from .devices import Device, InTurn, Launched, OwnClock

__all__ = ["Device", "InTurn", "Launched", "OwnClock"]
