"""HTTP over aiohttp: a response, or an error of aioresolve that contains no secret.

Redirects are not followed and cookies are not kept: a request goes to its host and to no other.
"""
