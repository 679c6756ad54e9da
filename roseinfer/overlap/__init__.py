"""Devices that take work in order: they compute a step while the host is free for the next one."""

from .devices import Device, InTurn, Launched, OwnClock

__all__ = ["Device", "InTurn", "Launched", "OwnClock"]
