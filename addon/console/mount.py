"""The console's routes, which are served at the control API's port."""

from addon.console import changes, connect, filled_forms, live, pages, request, sign_in, tools, turn
from addon.console.static_files import static_files
from addon.web.extra_routes import ExtraRoutes


def console_routes() -> ExtraRoutes:
    groups = sign_in, pages, live, connect, request, turn, tools, filled_forms, changes
    return ExtraRoutes([*(route for group in groups for route in group.router.routes), *static_files()])
