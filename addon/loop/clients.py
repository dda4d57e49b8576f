"""What the proxy's own HTTP clients have in common. It keeps nothing."""

from http.cookiejar import CookieJar, DefaultCookiePolicy


def no_cookies() -> CookieJar:
    """A jar that stays empty: a client is shared, and what a server sets for one session is no other's to send."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
