"""The console's routes, which are served at the control API's port."""

from addon.console import changes, pages, sign_in
from addon.console.static_files import static_files
from addon.web.extra_routes import ExtraRoutes


def console_routes() -> ExtraRoutes:
    return ExtraRoutes([*sign_in.router.routes, *pages.router.routes, *changes.router.routes, *static_files()])
