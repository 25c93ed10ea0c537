"""A TLS context that cannot be asked for.

Wrong: whether a client's properties about TLS make sense, and whether a broker's certificate is to be trusted by
    them, shows when it connects: it tries again in the background, and ends with "timed out". What it makes of the
    properties, nothing public returns.
Patch: its own function makes the context for the one connection by which we look at a broker.
Self-test: the class for connections with TLS has that function; looked at when a context is made.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client returns its TLS context, or says at once why it cannot connect.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping
from typing import Any

from kafka.net.transport import KafkaSSLTransport

from downspout.kafka.patches.parts import absent, unknown_client

OPTIONAL = {"KafkaSSLTransport._build_ssl_context": "function"}  # Needed with TLS only


def tls_context(client: Mapping[str, Any]) -> ssl.SSLContext:
    """Return what the client would use for TLS.

    Raises:
        BrokerError: the installed client is another one than we know.
        OSError: a file is none that TLS takes (an SSLError), or cannot be read.
        ValueError: likewise.
    """
    if path := absent(sys.modules[__name__], OPTIONAL):
        raise unknown_client(path)
    made = {name: client[name] for name in KafkaSSLTransport.DEFAULT_CONFIG if name in client}
    context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context({**KafkaSSLTransport.DEFAULT_CONFIG, **made})
    return context
