"""The gateway compared with pass-throughs that make the same calls and with another proxy, on instant upstreams."""
