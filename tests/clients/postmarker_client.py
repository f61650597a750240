"""The client ``postmarker``, as its users write it; prints what it saw as one JSON line."""

from __future__ import annotations

import json
import os

from postmarker.core import PostmarkClient
from postmarker.exceptions import ClientError

client = PostmarkClient(server_token=os.environ["POSTMARK_SERVER_TOKEN"])
client.root_api_url = os.environ["POSTMARK_API_URL"]
plain = {"From": "a@example.com", "TextBody": "t"}

one = client.emails.send(**plain, To="b@example.com", Subject="s", Metadata={"notifyq": "py"})
batch = client.emails.send_batch({**plain, "To": "c@example.com"}, {**plain, "To": "broken"})
found = client.messages.outbound.all(count=10, recipient="b@example.com")
try:
    client.emails.send(**plain, To="gone@example.com")
    refused = None
except ClientError as error:
    refused = error.error_code

print(
    json.dumps(
        {
            "one": one,
            "batch": batch,
            "found": [message.MessageID for message in found],
            "server": str(client.server.get()),
            "refused": refused,
        }
    )
)
