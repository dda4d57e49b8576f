"""A script that is loaded before the addon."""

from tests.e2e.scripts.edits import Edits

addons = [Edits("early")]
