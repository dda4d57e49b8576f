"""Settings common to the proxy's own HTTP clients."""

from http.cookiejar import CookieJar, DefaultCookiePolicy


def no_cookies() -> CookieJar:
    """A jar that stays empty: sessions share a client, and must not send each other's cookies."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
