"""`webhook`: messages as HTTP POSTs, one or many a call.

handler      the options; calls that are tried again
connections  what is kept of them, each for one call at a time
content      what a call carries: bodies as they are, JSON, CloudEvents
signature    a keyed hash over what is sent
answers      what becomes of messages by the status of the answer
tls          which server is trusted, and who we are
"""

from .handler import Webhook

__all__ = ["Webhook"]
