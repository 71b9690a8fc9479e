"""schemathesis over /openapi.json: no undocumented status or content type, and never a 5xx."""

from __future__ import annotations

from tests.clients.conftest import Runner
from tests.server.process import ServerProcess

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_no_request_made_from_the_schema_is_answered_unexpectedly(run_client: Runner, server: ServerProcess) -> None:
    run_client(
        "schemathesis", "st", "run", f"{server.url}/openapi.json", "--checks", CHECKS, "--phases",
        "examples,fuzzing", "--max-examples", "5", "--seed", "7", "--request-timeout", "30",
    )  # fmt: skip  # one option and its value per place
    assert server.metric('psd_request_errors_total{code="internal_error"}') == 0
    assert "Traceback" not in server.log
