"""Sabotages of where an HTTP request ends, and of the heads that are refused because servers read them differently."""

from tests.mutants.mutant import Mutant

SMUGGLED = "behind a proxy, one client's body becomes another's request"
TESTS = ("tests/gateway/test_http_parser.py",)

HTTP = (
    Mutant(
        "an HTTP request that offers another protocol loses its body",
        "BoundedHttp.__init__",
        "self.parser = Parser(self)",
        "",
        SMUGGLED,
        (),
        TESTS,
    ),
    Mutant(
        "the body behind an HTTP offer has no length",
        "Parser._read",
        "b''.join(self._framing)",
        "b''",
        SMUGGLED,
        (),
        TESTS,
    ),
    Mutant(
        "the lengths of an earlier HTTP request are kept",
        "Parser.on_message_begin",
        "self._framing = []",
        "",
        SMUGGLED,
        (),
        TESTS,
    ),
    Mutant(
        "an HTTP request that offers another protocol is complete twice",
        "Parser.on_message_complete",
        "self._parser.should_upgrade()",
        "False",
        "its route gets an empty body",
        (),
        TESTS,
    ),
    Mutant(
        "an HTTP request has two hosts",
        "fault_of_head",
        "len(hosts) > 1",
        "False",
        "a proxy checks one of them, and the gateway takes the other",
        (),
        TESTS,
    ),
    Mutant(
        "an HTTP request has no host",
        "fault_of_head",
        "not hosts and version == '1.1'",
        "False",
        "a proxy in front may not let it pass, or fill one in",
        (),
        TESTS,
    ),
    Mutant(
        "a coding of an HTTP body that nobody undoes passes",
        "_fault_of_coding",
        "coding.lower() == b'chunked'",
        "coding.lower().endswith(b'chunked')",
        "its bytes are taken for JSON",
        (),
        TESTS,
    ),
    Mutant(
        "HTTP/1.0 has chunks",
        "_fault_of_coding",
        "version == '1.0'",
        "False",
        SMUGGLED,
        (),
        TESTS,
    ),
)
