"""Short pauses before a request is repeated, where the upstream does not say how long."""

from addon.loop import pauses

pauses._FIRST_PAUSE = 0.02
