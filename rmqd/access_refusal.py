"""Interprets responses that refuse access, and gives advice for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rmqd.codes import RequestCode, ResponseCode

_RESOURCE: Final = re.compile(r"permission to access (\S+) from")  # RocketMQ 5: Topic:orders, Group:mailer
# The actions that RocketMQ 5 asks for, by the first word of a request's name; Sub for all other requests.
# DefaultAuthorizationContextBuilder, and the annotations of the request headers.
_ACTIONS: Final = {
    **dict.fromkeys(("SEND", "RECALL"), "Pub"),
    **dict.fromkeys(("GET", "QUERY", "SEARCH", "VIEW"), "Get"),
    **dict.fromkeys(("UPDATE", "INVOKE", "CLONE", "SET", "WIPE", "ADD", "PUT"), "Update"),
    "DELETE": "Delete",
}
_BY_REQUEST: Final = {
    **dict.fromkeys((RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST), "Create"),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "Sub",  # or Pub, or Get
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "Sub",  # or Get
    RequestCode.QUERY_CONSUMER_OFFSET: "Sub",  # or Get
    RequestCode.UPDATE_CONSUMER_OFFSET: "Sub",  # or Update
    RequestCode.QUERY_ASSIGNMENT: "Sub",
}


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """Why access control refuses a request. `is_about_who`: the server rejects our identity, and so refuses all
    requests.
    """

    is_about_who: bool
    advice: str

    @classmethod
    def of(cls, code: int, remark: str) -> AccessRefusal | None:
        """Return the refusal in a server's response; None if the response is about something else."""
        if code == ResponseCode.NO_PERMISSION or (code == ResponseCode.SYSTEM_ERROR and "AclException" in remark):
            return next((refusal for words, refusal in _REFUSALS if words in remark), None)
        return None

    def text(self, reason: str, request: RequestCode | None) -> str:
        """Return the refusal in words: the forbidden request with its action, `reason`, and the next step."""
        if self.is_about_who or request is None:
            return f"access ({reason}): {self.advice}"
        found = _RESOURCE.search(reason)
        resource = "" if found is None else found[1]
        action = _BY_REQUEST.get(request) or _ACTIONS.get(request.name.partition("_")[0], "Sub")
        if action == "Pub" and resource.startswith("Group:"):  # a member sends to its retry topic
            action = "Sub"
        refused = f"{request.name} ({reason}), which needs the action {action}"
        if not resource:
            return f"{refused}: {self.advice}"
        actions = "Sub,Get" if action in ("Sub", "Get") else action
        command = f"mqadmin createAcl -s User:USER -r {resource} -a {actions} -d Allow"
        return f"{refused}: `{command}` permits it; name all actions of the user there; docs/security.md"


_MISSING: Final = AccessRefusal(True, "set client.access_key and client.secret_key")
_UNKNOWN: Final = AccessRefusal(True, "the server does not know this client.access_key")
_SECRET: Final = AccessRefusal(True, "client.secret_key does not match client.access_key")
_DISABLED: Final = AccessRefusal(True, "the cluster's administrator can enable the user with `mqadmin updateUser`")
_EXPIRED: Final = AccessRefusal(True, "replace client.security_token and its keys, then `rmqd reload`")
_FAILED: Final = AccessRefusal(True, "check client.access_key, client.secret_key and client.security_token")
_FORBIDDEN: Final = AccessRefusal(
    False, "the cluster's administrator can permit it; docs/security.md lists the permissions"
)
# Words in the remarks of RocketMQ 5, then of RocketMQ 4. The first match counts.
_REFUSALS: Final = (
    ("has no permission to access", _FORBIDDEN),
    ("username cannot be null", _MISSING),
    ("check signature failed", _SECRET),
    ("is disabled", _DISABLED),
    ("Authorization failed", _FORBIDDEN),
    ("Authentication failed", _FAILED),
    ("authentication header is incorrect", _FAILED),
    ("No accessKey is configured", _MISSING),
    ("No acl config for", _UNKNOWN),
    ("Check signature failed", _SECRET),
    ("No default permission", _FORBIDDEN),
    ("No permission", _FORBIDDEN),
    ("Need admin permission", _FORBIDDEN),
    ("Token", _EXPIRED),
    ("token", _EXPIRED),
    ("User:", _UNKNOWN),
    ("AclException", _FAILED),
)
