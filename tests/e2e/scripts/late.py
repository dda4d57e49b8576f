"""A script that is loaded after the addon."""

from tests.e2e.scripts.edits import Edits

addons = [Edits("late")]
