"""`webhook`: sends messages as HTTP POSTs, one or many per call.

handler      the options; calls with retries
connections  kept connections, each for one call at a time
content      the content of a call: bodies as they are, JSON, CloudEvents
signature    a keyed hash of the content
answers      how the status of the response settles messages
tls          the trusted servers, and the client's certificate
"""

from .handler import Webhook

__all__ = ["Webhook"]
