"""The console's routes, which are served at the control API's port."""

from addon.console import changes, connect, filled_forms, pages, sign_in, static_files, tools, turn
from addon.web.api import ExtraRoutes


def console_routes() -> ExtraRoutes:
    groups = sign_in, pages, live, connect, request, turn, tools, filled_forms, changes
    return ExtraRoutes(
        [route for group in groups for route in group.router.routes],
        public=[route for group in (sign_in, pages, static_files) for route in group.public.routes],
    )
