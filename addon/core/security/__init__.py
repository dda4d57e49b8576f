"""Security rules without I/O: credentials, secrets, browsers, hosts, and text that is safe to show."""
