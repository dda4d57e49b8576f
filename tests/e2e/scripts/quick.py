"""Short pauses before a request is repeated, unless the upstream gives a time."""

from addon.loop import upstream

upstream._FIRST_PAUSE = 0.02
