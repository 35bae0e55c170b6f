"""HTTP over aiohttp, whose room this is: a request's answer, or one of our errors that shows no secret.

Redirects are not followed and cookies are not kept: what is sent goes to the host it was meant for and to
nobody else.
"""
