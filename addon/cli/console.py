"""`toolgraft console`: a link to the web pages."""

from typing import Annotated

import typer

from addon.cli import options, output


def console(
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Print a link to the console, the control API's web pages. It signs in once, within 15 minutes."""
    from addon.cli.api import Api

    with Api(url) as api:
        path = "/console" if api.token is None else api.post("/console/links", {})["path"]
        link = api.url + path
    if opens:
        import webbrowser

        opens = webbrowser.open(link)
    if as_json:
        output.print_json({"url": link})
    elif not opens:
        print(link)
