"""What the control API, the gateway and the loop server share: routing, problems, the guard, the embedded server."""
