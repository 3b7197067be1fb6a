"""Reads messages with the CloudEvents SDK for Python and tells what it read.

Input and output are JSON lists on standard input and output. Bodies are Base64, so that nothing is lost on the way.
"""

import base64
import json
import sys
from datetime import timezone

from cloudevents.core.bindings import amqp, http, kafka
from cloudevents.core.formats.json import JSONFormat


def read(message):
    protocol, headers, content_type = message["protocol"], message["headers"], message["content_type"]
    body = base64.b64decode(message["body"])
    if protocol == "http":
        return http.from_http(http.HTTPMessage({**headers, "content-type": content_type}, body), JSONFormat())
    if protocol == "kafka":
        named = {**headers, "content-type": content_type}
        named = {name: value.encode() for name, value in named.items()}
        return kafka.from_kafka(kafka.KafkaMessage(named, message["key"], body), JSONFormat())
    assert protocol == "amqp", protocol
    return amqp.from_amqp(amqp.AMQPMessage({"content-type": content_type}, headers, body), JSONFormat())


def told(event):
    attributes = dict(event.get_attributes())
    if "time" in attributes:
        time = attributes["time"].astimezone(timezone.utc)
        attributes["time"] = time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    data = event.get_data()
    if isinstance(data, (bytes, bytearray)):
        return {"attributes": attributes, "bytes": base64.b64encode(data).decode()}
    return {"attributes": attributes, "data": data}


json.dump([told(read(message)) for message in json.load(sys.stdin)], sys.stdout)
