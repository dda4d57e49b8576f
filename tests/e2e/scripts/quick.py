"""Short pauses before a request is repeated, unless the upstream gives a time."""

from addon.loop import pauses

pauses._FIRST_PAUSE = 0.02
