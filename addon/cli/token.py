"""`toolgraft token`: the control API's bearer token."""

from addon.cli import options, output


def show(session: options.AnySession = None, url: options.Url = None, as_json: options.Json = False) -> None:
    """Print the control API's token; one is made where there is none yet.

    All sessions share it, and it is this machine's: --session and --url change nothing here.
    """
    from addon.cli.api import own_token

    token = own_token()
    if as_json:
        output.print_json({"token": token})
    else:
        print(token)
