"""The demo: a plain client, the proxy and the strict local Gemini, with the data on both connections side by side.

It uses the proxy from outside, as a user does: it starts mitmdump as a process and speaks HTTP.
"""

from addon.demo.run import run as run
