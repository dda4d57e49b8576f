"""For clients of test servers without TLS."""

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without authorities: reading them for each client takes longer than many of the tests."""
