"""The demo: a plain client, the proxy and the strict local Gemini, and what went over each wire, side by side.

It knows the proxy only from outside, as a user does: it starts mitmdump as a process of its own and speaks HTTP.
"""

from addon.demo.show.run import run as run
